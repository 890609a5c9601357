"""(g) the sink's transaction with the three departures from the design: a long list stands under an id of its own
(ADR 3), a bulk writer voids what it did not need (ADR 4), forget_sink keeps the row and its epoch (ADR 5).
`h..` are controls and counterexamples and must violate, `H..` are the rules and must hold.

Actors: task attempts (processes of their own: read the sink row, reserve two buckets, use one), drivers (one per run,
one or two on one checkpoint), Q (reader: closes gaps at any time, acts on what is decided, delivers; its pointer may be
as old as it likes, so R is not modelled), P (repair: L, ghosts, aborts, lists), F (forget_sink, at any time).
A life = what lies between two forgets. A CAS or INSERT without an answer is sent again, and its copy lands any time
later, if its condition holds then: a late INSERT needs no row, so it also hits a bucket that was dropped (a ghost).

What is one step although it is several (each is exact, because what lies between changes nothing that counts):
read + CAS of one row (refused = read again); seal and deliver (visible = delivered); INSERT sealing, read L, close an
empty bucket (an INSERT on a dropped bucket is the late copy 'is'); L passes a finished bucket at once when nobody can
touch it any more. A bucket row is its status: `writing` is inserted by its owner only, each copy with the same writer
uuid, so `IF writer = as read` says no more than `IF status = as read`, and a ghost has the writer that once was."""
import sys
from itertools import product

from mc import check as mccheck

ABS, WR, PR, SEALING, VO, DR = '-', 'writing', 'prepared', 'sealing', 'void', 'drained'
OVER = ('end', None, None)
# sink: (version, epoch, last, list id, list = its hash, query, run, past); lists: {(id, version the CAS needs, list)}
# runs: (life, (pc, batch, memory)); att: {(run, task, batch, pc, epoch, block, forgets before, bucket)}
# own: per block (epoch, forgets before it); com: (life, batch, list, forgets before)
N = ('rows', 'own', 'L', 'sink', 'lists', 'runs', 'att', 'logs', 'q', 'p', 'f', 'pend', 'crashes', 'am', 'ab', 'sp',
     'ea', 'fg', 'dl', 'com', 'flag')


def tset(t, i, v):
    return t[:i] + (v,) + t[i + 1:]


def mk(cfg):
    D = cfg.get('drivers', 1); B = cfg.get('batches', 1); T = cfg.get('tasks', 1); CR = cfg.get('crashes', 1)
    RUNS = cfg.get('runs', 2); PER = cfg.get('per', RUNS)  # in all; per life
    AB = cfg.get('aborts', 0)            # aborts while a driver lives
    SPEC = cfg.get('spec', 0)            # second attempts while the first goes on
    AMB = cfg.get('amb', 1)              # CASes without an answer, of these kinds: iw/iv/is INSERT writing/void/
    AMBS = cfg.get('ambs', ('iw', 'iv', 'cv', 'co'))  # sealing, cv/cp CAS writing -> void/prepared, co commit
    OPEN = cfg.get('open', (0,))         # 1: the second bucket may be opened ahead and left empty
    EARLY = cfg.get('early', None)       # a bucket is given back early, yet used: 'cas' | 'blind' = without a condition
    NAMED = cfg.get('named', False)      # the owner voids what its result names, too
    LCHK = cfg.get('lchk', True)         # the writer reads L after INSERT writing
    LROLL = cfg.get('lroll', 'odd')      # roll forward reads L: 'never' | 'odd' = before it calls a listed bucket
    #                                      corrupt that is void or writing | 'all' = before it seals one, too
    LONG = cfg.get('long', False)        # the list stands beside the row
    KEY = cfg.get('key', 'id')           # under an 'id' of its own | the 'epoch'
    CLEAN = cfg.get('clean', None)       # repair deletes a list that the row, read after it, does not name:
    #                                      'naive' | 'based' = only if the CAS it is for is dead (other version)
    FG = cfg.get('forgets', 0)
    FORGET = cfg.get('forget', 'keep')   # 'keep' the row | 'delete' it
    ABSENT = cfg.get('absent', None)     # forget without a row: None = not looked at | 'skip' | 'insert' a row
    FROLL = cfg.get('froll', True)       # forget rolls the list forward first
    FPAST = cfg.get('fpast', True)       # forget remembers the former run
    GONE = cfg.get('gone', 'dead')       # the former life's drivers are 'dead' (its tasks go on, some begin only now) |
    #                                      'late' (the batch being written goes on, no task begins) | 'alive'
    SAMEQ = cfg.get('sameq', False)      # the next life has the same query id (an older backup of the checkpoint)
    REG = cfg.get('reg', False)          # run 0 has committed batch 0 before, the row names it
    STALE = cfg.get('stale', FORGET == 'delete' or LONG)  # Q acts later than it reads the sink row

    def query(life):
        return 0 if SAMEQ else life

    def launch(r, b):
        return frozenset((r, t, b, 'a', 0, None, 0, 0) for t in range(T))

    def init():
        b = int(REG)
        runs = tuple((0, ('wait', b, None)) for _ in range(D))
        return ((), (), 0, (1, 2, 0, None, (), 0, 0, ()) if REG else None, frozenset(), runs,
                frozenset().union(*(launch(r, b) for r in range(D))), (b - 1,) + (-1,) * FG, None, None, None, (), CR,
                AMB, AB, SPEC, int(bool(EARLY)), 0, frozenset(), ((0, 0, (), 0),) if REG else (), None)

    def awaited(run, b):
        return run[1] == b and run[0] in ('wait', 'cl', 'cc')

    def normal(g):
        """Without what cannot matter any more: attempts nobody waits for, dead CASes; and L as far as nobody looks."""
        g['att'] = frozenset(a for a in g['att'] if a[3] not in ('ok', 'sk', 'x') or awaited(g['runs'][a[0]][1], a[2]))
        s, n, rows = g['sink'], g['L'], g['rows']
        g['pend'] = tuple(x for x in g['pend'] if x[0] != 'co' or (s and x[1] == s[0]))
        busy = {a[5] for a in g['att'] if a[3] in 'wlpq'} | {x[1] // 2 for x in g['pend'] if x[0] != 'co'}
        while n < len(rows) and rows[n] in (DR, VO) and n // 2 not in busy:
            rows = tset(rows, n, ABS)
            n += 1
        g['L'], g['rows'] = n, rows

    def succ(st):
        g0 = dict(zip(N, st))
        rows, own, L, sink, lists, runs, att, logs, q, p, f, pend, cr, am, ab, sp, ea, fg, dl, com, flag = st
        out = []

        def add(label, **k):
            g = dict(g0)
            g.update(k)
            normal(g)
            out.append((label, tuple(g[n] for n in N)))

        def setrow(b, s):
            return tset(rows, b, s)

        def setrun(r, *v):
            return tset(runs, r, (runs[r][0], v))

        def again(a):
            """An attempt died; Spark starts another while its driver waits."""
            pc, b, _ = runs[a[0]][1]
            return frozenset(att - {a} | ({a[:3] + ('a', 0, None, 0, 0)} if pc == 'wait' and b == a[2] else set()))

        def late(*x):
            return dict(pend=tuple(sorted(pend + (x,), key=str)))

        def amb(*x):
            return dict(late(*x), am=am - 1)

        def may(kind):
            return am and kind in AMBS

        def owned(s, life):
            return (s[5] is not None or s[6] is not None) and s[5] != query(life)

        def past(r):
            return sink[7] if sink[6] in (None, r) else tuple(sorted(set(sink[7]) | {sink[6]}))

        def aborted():
            return (sink[0] + 1, sink[1] + 1, sink[2], None, ()) + sink[5:]

        def load(who, ref, version):
            """The rows of a list, read after the sink row; None = read that again."""
            if not LONG or not ref[1] or {i: c for i, _, c in lists}.get(ref[0]) == ref[1]:
                return ref[1]
            if sink and sink[0] == version:
                add(f"{who}: the list {list(ref[1])} of the row is not there", flag='I7 the list of a batch is gone')
            return None

        def roll(who, listed, **failed):
            """One step of roll forward; False = nothing to do."""
            for b in listed:
                if rows[b] == PR and not (LROLL == 'all' and b < L):
                    add(f"{who}: rolls {b} forward; it is delivered and acked", rows=setrow(b, DR), dl=dl | {b},
                        flag='I4 a dropped bucket appears again' if b in dl else None)
                    return True
                if rows[b] in (WR, VO) and not (LROLL != 'never' and b < L):
                    add(f"{who}: bucket {b} is listed and {rows[b]}: RowCorrupt", **failed,
                        flag='I10 RowCorrupt, but nothing is corrupt' if b in dl else 'I7 a listed bucket is lost')
                    return True
            return False

        def commit(r, who, life, b, es, ref):
            tail = ref + (query(life), r, past(r))
            if es == {None}:
                add(f"{who}: {b} is committed; CAS run = {r}", sink=(sink[0] + 1,) + sink[1:3] + tail,
                    runs=setrun(r, 'po', b, None))
                return
            ns, c = (sink[0] + 1, sink[1] + 1, b) + tail, (life, b, ref[1], fg)
            add(f"{who}: COMMIT {b} {list(ref[1])}", sink=ns, com=com + (c,), runs=setrun(r, 'po', b, None))
            if may('co'):
                add(f"{who}: COMMIT {b} {list(ref[1])} in flight, driver dies", runs=setrun(r, *OVER),
                    **amb('co', sink[0], ns, c))

        # ---- the network
        for x in pend:
            rest = tuple(y for y in pend if y is not x)
            if x[0] == 'co':
                add("net: COMMIT lands", sink=x[2], com=com + (x[3],), pend=rest)
            elif x[0] in ('iw', 'iv', 'is') and rows[x[1]] == ABS:
                s = {'iw': WR, 'iv': VO, 'is': SEALING}[x[0]]
                add(f"net: a copy of INSERT {s} {x[1]} lands", rows=setrow(x[1], s), pend=rest)
            elif x[0] in ('cv', 'cp') and rows[x[1]] == WR:
                s = {'cv': VO, 'cp': PR}[x[0]]
                add(f"net: a copy of CAS {x[1]} writing -> {s} lands", rows=setrow(x[1], s), pend=rest)
            elif x[0] == 'bv' and rows[x[1]] != ABS:
                add(f"net: void of {x[1]} without a condition lands", rows=setrow(x[1], VO), pend=rest)

        # ---- attempts: a(dmit, reserve), w(riting), l (read L), p(repare and give back; q: second bucket open)
        for a in att:
            r, t, b, pc, e, k, gen, u = a
            who = f"T{r}.{t}" + ('' if sum(x[:3] == a[:3] for x in att) == 1 else f" (block {k})")
            life = runs[r][0]

            def now(pc, e=e, k=k, gen=gen, u=u):
                return frozenset(att - {a} | {(r, t, b, pc, e, k, gen, u)})
            if pc == 'a':
                s = sink or (1 + 10 * fg, 1, -1, None, (), query(life), None, ())
                n = len(own)
                if life < fg and GONE == 'late':
                    add(f"{who}: is started no more", att=now('x'))
                elif owned(s, life):
                    add(f"{who}: SinkIdReused", att=now('x'),
                        flag='I10 SinkIdReused for the life that begins' if life == fg else None)
                elif r in s[7]:
                    add(f"{who}: SinkFenced", att=now('x'))
                elif b < s[2]:
                    add(f"{who}: SinkDiverged", att=now('x'))
                elif b == s[2]:
                    add(f"{who}: {b} is committed already", att=now('sk'))
                else:
                    add(f"{who}: {'' if sink else 'inserts the row, '}epoch {s[1]}, reserves {2 * n}, {2 * n + 1}",
                        sink=s, rows=rows + (ABS, ABS), own=own + ((s[1], fg),), att=now('w', s[1], n, fg, 2 * n))
            elif pc == 'w':
                if rows[u] in (ABS, WR):     # WR: its own, a copy has landed
                    add(f"{who}: INSERT writing {u}", rows=setrow(u, WR), att=now('l' if LCHK else 'p'))
                else:
                    add(f"{who}: INSERT writing {u} refused ({rows[u]})", att=now('x' if u % 2 else 'w', u=u + 1))
                if may('iw'):
                    add(f"{who}: INSERT writing {u} unanswered, sends it again", **amb('iw', u))
            elif pc == 'l' and u < L:
                add(f"{who}: reads L = {L}", att=now('x' if u % 2 else 'w', u=u + 1))
            elif pc == 'l':
                if 0 in OPEN or u % 2:
                    add(f"{who}: reads L = {L}, fills {u}", att=now('p'))
                if 1 in OPEN and not u % 2 and rows[u + 1] == ABS:
                    kw = dict(rows=setrow(u + 1, WR), att=now('q'))
                    add(f"{who}: reads L = {L}, fills {u}, opens {u + 1} ahead", **kw)
                    if may('iw'):
                        add(f"{who}: reads L = {L}, fills {u}, opens {u + 1} ahead, twice", **kw, **amb('iw', u + 1))
            elif pc in ('p', 'q'):
                if ea:
                    add(f"{who}: gives {u} back, unanswered; more rows come, it goes on with {u}", ea=0,
                        **late('bv' if EARLY == 'blind' else 'cv', u))
                if may('cp'):
                    add(f"{who}: CAS {u} prepared unanswered, sends it again", **amb('cp', u))
                if rows[u] != WR:
                    add(f"{who}: {u} is {rows[u]}: SinkFenced", att=now('x'))
                elif u % 2:
                    add(f"{who}: {u} prepared", rows=setrow(u, PR), att=now('ok'))
                else:
                    kw, o, kind = dict(rows=setrow(u, PR), att=now('ok')), u + 1, 'cv' if pc == 'q' else 'iv'
                    if rows[o] == (WR if pc == 'q' else ABS):
                        add(f"{who}: {u} prepared, {o} given back", **dict(kw, rows=tset(kw['rows'], o, VO)))
                    else:
                        add(f"{who}: {u} prepared, {o} is {rows[o]}", **kw)
                    if NAMED:
                        add(f"{who}: {u} prepared, given back and named", **dict(kw, rows=setrow(u, VO)))
                    if may(kind):
                        add(f"{who}: {u} prepared, giving {o} back unanswered", **kw, **amb(kind, o))
                    if cr:
                        add(f"crash {who}, {u} prepared", crashes=cr - 1, rows=kw['rows'], att=again(a))
            if cr and pc in 'wlpq':
                add(f"crash {who} ({pc})", crashes=cr - 1, att=again(a))

        # ---- drivers
        alive = [r for r, (life, x) in enumerate(runs) if life == fg and x[0] != 'end']
        mine = [life for life, _ in runs if life == fg]
        if not f and len(alive) < D and len(runs) < RUNS and len(mine) < PER and logs[fg] < B - 1:
            b = logs[fg] + 1
            add(f"life {fg}: run {len(runs)} starts, batch {b} launched", runs=runs + ((fg, ('wait', b, None)),),
                att=att | launch(len(runs), b))
        for r, (life, (pc, b, mem)) in enumerate(runs):
            who = f"run{r}"
            if pc == 'wait':
                tasks = [[a for a in att if a[:3] == (r, t, b)] for t in range(T)]
                ends = [[a for a in m if a[3] in ('ok', 'sk')] for m in tasks]
                if any(not w and m and all(a[3] == 'x' for a in m) for m, w in zip(tasks, ends)):
                    add(f"{who}: job failed", runs=setrun(r, *OVER))
                for m in tasks if sp else ():
                    if len(m) == 1 and m[0][3] in 'wlpq':
                        add(f"{who}: Spark starts a second attempt", att=att | {m[0][:3] + ('a', 0, None, 0, 0)},
                            sp=sp - 1)
                for win in product(*ends):
                    es = frozenset(a[4] if a[3] == 'ok' else None for a in win)
                    listed = tuple(sorted(a[7] for a in win if a[3] == 'ok'))
                    fail = None
                    if sink is None:
                        fail = 'the row is gone: SinkFenced'
                    elif owned(sink, life):
                        fail = 'SinkIdReused'
                    elif r in sink[7]:
                        fail = 'SinkFenced'
                    elif b < sink[2]:
                        fail = 'SinkDiverged'
                    elif b == sink[2] and sink[6] == r:
                        add(f"{who}: {b} is committed and mine", runs=setrun(r, 'po', b, None))
                        continue
                    elif b == sink[2] and es != {None}:
                        fail = 'committed by another run: SinkFenced'
                    elif b > sink[2] and es != {sink[1]}:
                        fail = f'epochs {sorted(es, key=str)}, the row has {sink[1]}: SinkFenced'
                    if fail:
                        add(f"{who}: {fail}", runs=setrun(r, *OVER))
                    elif LONG:
                        add(f"{who}: reads the row (epoch {sink[1]})",
                            runs=setrun(r, 'cl', b, (es, listed, sink[0], sink[3:5])))
                    elif es == {None} or not roll(who, sink[4], runs=setrun(r, *OVER)):
                        commit(r, who, life, b, es, (None, sink[4] if es == {None} else listed))
            elif pc == 'cl':                 # the list as read: roll it forward, write one's own
                es, listed, version, ref = mem
                earlier = load(who, ref, version)
                if earlier is None or sink[0] != version:
                    add(f"{who}: the row has moved on", runs=setrun(r, 'wait', b, None))
                elif es == {None} or not roll(who, earlier, runs=setrun(r, *OVER)):
                    keep = earlier if es == {None} else listed
                    i = sink[1] if KEY == 'epoch' else (who, version)
                    add(f"{who}: writes the list {list(keep)} under {i}", lists=frozenset(
                        x for x in lists if x[0] != i) | {(i, version, keep)},
                        runs=setrun(r, 'cc', b, (es, listed, version, (i, keep))))
            elif pc == 'cc':
                es, listed, version, ref = mem
                if sink is None or sink[0] != version:
                    add(f"{who}: CAS refused, reads again", runs=setrun(r, 'wait', b, None))
                else:
                    commit(r, who, life, b, es, ref)
            elif pc == 'po':
                more = b + 1 < B and not (life < fg and GONE == 'late')
                add(f"{who}: Spark's commit log {b}" + (f"; batch {b + 1} launched" if more else ''),
                    logs=tset(logs, life, max(logs[life], b)), att=att | launch(r, b + 1) if more else att,
                    runs=setrun(r, 'wait', b + 1, None) if more else setrun(r, *OVER))
            if cr and pc != 'end':
                add(f"crash {who} ({pc}); its tasks go on", crashes=cr - 1, runs=setrun(r, *OVER))

        # ---- a reader (or repair: the same steps)
        if q is None:
            for b, s in enumerate(rows):
                e = own[b // 2][0]
                if s == ABS and b >= L:
                    add(f"Q: {b}: no row for the gap timeout: closes it", rows=setrow(b, VO))
                    if may('is'):
                        add(f"Q: {b}: no row for the gap timeout: INSERT sealing unanswered, Q dies", **amb('is', b))
                elif s == SEALING and b >= L:
                    add(f"Q: {b} is sealing; reads L after it; closes it", rows=setrow(b, VO))
                elif s in (WR, PR) and (sink is None or e < sink[1]):
                    if STALE:
                        add(f"Q: {b} is {s} of epoch {e}; reads the row ({'none' if sink is None else sink[1]})",
                            q=(b, sink))
                    elif e == sink[1] - 1 and b in sink[4]:
                        roll('Q', sink[4])
                    else:
                        add(f"Q: {b} is {s} of epoch {e}, the row has {sink[1]}: void", rows=setrow(b, VO))
        else:
            b, s = q
            listed = load('Q', s[3:5], s[0]) if s and own[b // 2][0] == s[1] - 1 else ()
            if listed is None:
                add("Q: the row has moved on, reads again", q=None)
            elif b not in listed:
                add(f"Q: voids {b}", rows=setrow(b, VO) if rows[b] in (WR, PR) else rows, q=None)
            elif not roll('Q', listed, q=None):
                add("Q: rolled forward", q=None)

        # ---- repair: L, ghosts, aborts, lists
        if L < len(rows) and rows[L] in (DR, VO):
            add(f"P: L = {L + 1}, deletes row {L}", L=L + 1, rows=setrow(L, ABS))
        for b in range(L):
            if rows[b] != ABS:
                add(f"P: deletes the ghost row {b}", rows=setrow(b, ABS))
        idle = not f and not att and all(x[0] == 'end' for _, x in runs)
        if p is None:
            if sink and (ab or idle) and any(s in (WR, PR) and own[b // 2][0] >= sink[1] for b, s in enumerate(rows)):
                left = ab if idle else ab - 1
                if LONG:
                    add(f"P: no sign of life in epoch {sink[1]}", p=('l', sink[0], sink[3:5]), ab=left)
                elif not roll('P', sink[4]):
                    add(f"P: no sign of life: aborts epoch {sink[1]}", sink=aborted(), ab=left)
            for i, version, _ in sorted(lists, key=str) if CLEAN else ():
                if sink and sink[3] != i and (CLEAN == 'naive' or sink[0] != version):
                    add(f"P: list {i} is not the row's", p=('d', i))
        elif p[0] == 'd':
            add(f"P: deletes list {p[1]}", lists=frozenset(x for x in lists if x[0] != p[1]), p=None)
        else:
            listed = load('P', p[2], p[1])
            if listed is None or sink is None or sink[0] != p[1]:
                add("P: the row has moved on", p=None)
            elif not roll('P', listed, p=None):
                add(f"P: aborts epoch {sink[1]}", sink=aborted(), p=None)

        # ---- forget
        if fg < FG and not f and (sink or ABSENT):
            dead = GONE == 'dead'
            add("F: forget_sink" + (", its drivers are dead" if dead else ""), f=('f',),
                runs=tuple((life, OVER) for life, _ in runs) if dead else runs)
        elif f == ('f',) and sink is None:
            add(f"F: no row: {ABSENT}", f=None, fg=fg + 1,
                sink=(1 + 10 * fg, 1, -1, None, (), None, None, ()) if ABSENT == 'insert' else None)
        elif f == ('f',) and LONG:
            add(f"F: reads the row (epoch {sink[1]})", f=('l', sink[0], sink[3:5]))
        elif f:
            listed = load('F', f[2], f[1]) if LONG else sink[4]
            if listed is None or LONG and sink[0] != f[1]:
                add("F: the row has moved on, reads again", f=('f',))
            elif not (FROLL and roll('F', listed, f=None)):
                kept = (sink[0] + 1, sink[1] + 1, -1, None, (), None, None, past(None) if FPAST else sink[7])
                add("F: deletes the row" if FORGET == 'delete' else f"F: forgets: epoch {kept[1]}, nobody's",
                    sink=None if FORGET == 'delete' else kept, fg=fg + 1, f=None)
        return out

    def bad(st):
        g = dict(zip(N, st))
        rows, dl, com = g['rows'], g['dl'], g['com']
        if g['flag']:
            yield g['flag']
        if len({c[:2] for c in com}) < len(com):
            yield 'I7 a batch committed twice'
        for life, b, bs, fg in com:
            if life < fg:
                yield 'I7 a run of a former life commits in the new one'
            if any(g['own'][x // 2][1] != fg for x in bs):
                yield 'I7 buckets of a former life become visible in the new one'
        listed = {x for c in com for x in c[2]}
        if any(x not in dl and (rows[x] != PR or x < g['L']) for x in listed):
            yield 'I7 a committed bucket is lost'
        if not dl <= listed:
            yield 'I7 a bucket of no committed batch is visible'

    def stuck(st):
        g = dict(zip(N, st))
        for _, (pc, _, _) in g['runs']:
            if pc != 'end':
                yield f'stuck driver in {pc}'
        for a in g['att']:
            yield f'stuck attempt in {a[3]}'
        for b, s in enumerate(g['rows']):
            if b >= g['L'] or s != ABS:
                yield f'I10 a bucket is {s} for ever'
        if any(not g['dl'].issuperset(c[2]) for c in g['com']):
            yield 'I7 a committed batch is never whole'
        if CLEAN and any(not g['sink'] or i != g['sink'][3] and v != g['sink'][0] for i, v, _ in g['lists']):
            yield 'leak: a list stays for ever'
    return init, succ, bad, stuck


QUIET = dict(crashes=0, amb=0)
RUNS = [
    ('h0 forget deletes the row, a late task makes it anew', dict(QUIET, forget='delete', forgets=1, spec=1, per=1)),
    ('h0b the same, same query id, its former driver has not ended',
     dict(QUIET, forget='delete', forgets=1, sameq=True, gone='late')),
    ('h1 list under (sink, epoch), two drivers', dict(QUIET, key='epoch', long=True, drivers=2)),
    ('h2 the owner voids what it has named', dict(QUIET, named=True)),
    ('h2b void without a condition, unanswered; the bucket is used after all', dict(QUIET, early='blind')),
    ('h3 repair deletes each list that the row does not name', dict(QUIET, long=True, clean='naive')),
    ('h4 roll forward takes a ghost for corruption', dict(lroll='never', crashes=0)),
    ('h5 forget of a life that goes on, under a run the row does not name',
     dict(forgets=1, gone='alive', reg=True, batches=2, crashes=0, ambs=('co',))),
    ('h6 the writer does not read L after its INSERT', dict(QUIET, lchk=False)),
    ('h7 forget does not roll forward first', dict(QUIET, froll=False, forgets=1)),
    ('h8 forget does not remember the run',
     dict(QUIET, fpast=False, forgets=1, gone='alive', reg=True, per=1, batches=2)),
    ('h9 two copies land late: a prepared ghost', dict(runs=1, amb=2, ambs=('iw', 'cp'), crashes=0)),
    ('h10 forget without a row does nothing', dict(QUIET, forgets=1, absent='skip')),
    ('H0 one driver', dict(ambs=('iw', 'iv', 'is', 'co'))),
    ('H0b one driver, abort, second bucket opened ahead or not',
     dict(open=(0, 1), ambs=('iw', 'iv', 'cv', 'cp'), crashes=0, aborts=1)),
    ('H0c one driver, two crashes', dict(crashes=2, amb=0)),
    ('H1 two drivers, crash', dict(drivers=2, amb=0)),
    ('H1b two drivers, in flight, abort', dict(drivers=2, crashes=0, aborts=1)),
    ('H1c two drivers, crash and in flight', dict(drivers=2)),
    ('H2 two tasks, in flight, abort', dict(tasks=2, runs=1, crashes=0, aborts=1)),
    ('H2b two tasks, crash', dict(tasks=2, runs=1, amb=0)),
    ('H2c two attempts', dict(spec=1, crashes=0)),
    ('H3 two batches', dict(batches=2, amb=0)),
    ('H3b two batches, in flight', dict(batches=2, crashes=0, open=(0, 1))),
    ('H4 forget, in flight', dict(forgets=1, crashes=0, stale=True)),
    ('H4b forget, crash', dict(forgets=1, amb=0)),
    ('H4c forget, crash and in flight', dict(forgets=1)),
    ('H4d forget, same query id, a batch is being written', dict(forgets=1, sameq=True, gone='late', crashes=0)),
    ('H4e forget, the run that the row names goes on',
     dict(forgets=1, gone='alive', reg=True, per=1, batches=2, crashes=0)),
    ('H4f forget with or without a row, which it inserts', dict(forgets=1, absent='insert', crashes=0)),
    ('H4g two forgets', dict(QUIET, forgets=2, runs=3, per=1)),
    ('H5 long list, cleaned, two drivers', dict(QUIET, long=True, clean='based', drivers=2, aborts=1)),
    ('H5b long list, cleaned, crash', dict(long=True, clean='based', amb=0)),
    ('H5c long list, cleaned, forget', dict(long=True, clean='based', forgets=1, crashes=0, ambs=('co',))),
    ('H5d long list, cleaned, two batches', dict(QUIET, long=True, clean='based', batches=2, aborts=1)),
    ('H6 void with its condition, unanswered; the bucket is used after all', dict(early='cas', amb=0)),
    ('H9 as h9, L is read before each roll forward', dict(amb=2, lroll='all', ambs=('iw', 'cp'), crashes=0)),
]
if __name__ == '__main__':
    which = sys.argv[1].split(',') if len(sys.argv) > 1 else ['all']
    for name, cfg in RUNS:
        if 'all' in which or name.split()[0] in which:
            mccheck(name, *mk(cfg), max_states=int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000,
                    max_s=int(sys.argv[3]) if len(sys.argv) > 3 else 110)
