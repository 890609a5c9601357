"""(g) the sink's transaction with the three departures: a long list is kept under an id of its own (ADR 3), a bulk writer voids what it
did not need (ADR 4), forget_sink keeps the row and its epoch (ADR 5). `h..` are controls and must violate, `H..` are the rules.

Attempts (own process, read the sink row, reserve two buckets, use one) + drivers (one per run; several on one checkpoint) + Q (a reader
whose pointer may be old: it looks at any bucket, closes gaps at any time, settles, delivers) + P (repair: aborts, cleans lists) + F (forget).
Dropping (L + 1 over finished rows, delete below L) is atomic. A row is its status: only its owner inserts `writing`, always with the same
writer uuid (it sends the same statement again), so `IF writer = as read` is `IF status = as read`, for ghosts too. R is left out: L may pass
whatever is finished. `gen` = number of forgets before an attempt was admitted. A life = a query between two forgets."""
import sys
from itertools import product

from mc import check as mccheck

ABS, WR, PR, SEALING, VO, DR = '-', 'writing', 'prepared', 'sealing', 'void', 'drained'
OVER = ('end', None, None)


def tset(t, i, v):
    return t[:i] + (v,) + t[i + 1:]


def mk(cfg):
    D = cfg.get('drivers', 1); RUNS = cfg.get('runs', 2); PER = cfg.get('per', RUNS); B = cfg.get('batches', 1); T = cfg.get('tasks', 1); CR = cfg.get('crashes', 1)
    AMB = cfg.get('amb', 1); AMBS = cfg.get('ambs', ('iw', 'iv', 'cv', 'co')); FG = cfg.get('forgets', 0); AB = cfg.get('aborts', 0)
    SPEC = cfg.get('spec', 0)            # second attempts that Spark starts while the first goes on
    OPEN = cfg.get('open', (0,))         # 0: second bucket never opened; 1: opened ahead, left empty
    LONG = cfg.get('long', False)        # the list stands beside the row
    KEY = cfg.get('key', 'id')           # 'id' of its own | 'epoch'
    CLEAN = cfg.get('clean', None)       # repair deletes lists: 'based' = row read after the list has another writer than the list's
    #                                      CAS asks for | 'naive' = the row does not name it
    FORGET = cfg.get('forget', 'keep')   # 'keep' the row and epoch + 1 | 'delete' it
    FROLL = cfg.get('froll', True)       # forget rolls the list forward first
    FPAST = cfg.get('fpast', True)       # forget remembers the former run
    GONE = cfg.get('gone', 'dead')       # drivers of the former life when it is forgotten: 'dead' (its tasks are not, and may begin later)
    #                                      | 'late' (a batch that is being written goes on, no task begins any more) | 'alive'
    SAMEQ = cfg.get('sameq', False)      # the next life has the same query id (an older backup of the checkpoint)
    LROLL = cfg.get('lroll', True)       # a listed bucket that is writing/void: read L before it is called corrupt (G5)
    STALE = cfg.get('stale', FORGET == 'delete')  # Q acts later than it reads the row (a decided bucket stays decided: only a check)
    LCHK = cfg.get('lchk', True)         # the writer reads L after INSERT writing
    NAMED = cfg.get('named', False)      # the owner voids what it named, too
    EARLY = cfg.get('early', None)       # void sent early, unanswered, bucket used after all: 'cas' | 'blind' = no condition
    REG = cfg.get('reg', False)          # run 0 has committed batch 0 already: it stands in the row
    N = ('rows', 'own', 'L', 'sink', 'lists', 'runs', 'att', 'logs', 'q', 'p', 'f', 'pend', 'cr', 'am', 'ab', 'sp', 'ea', 'fg', 'dl', 'com', 'flag')
    # sink: (version, epoch, last, list id, hash of the list (= the list), query, run, past); run: (pc, batch, memory); lists: {(id, base, list)}
    # att: {(run, task, batch, pc, epoch, block, gen, bucket)}; own: per block (epoch, gen)

    def init():
        runs = tuple((0, ('wait', int(REG), None)) for _ in range(D))
        att = frozenset((r, t, int(REG), 'a', 0, None, 0, 0) for r in range(D) for t in range(T))
        sink = (1, 2, 0, None, (), 0, 0, ()) if REG else None
        return ((), (), 0, sink, frozenset(), runs, att, (0 if REG else -1,) + (-1,) * FG, None, None, None, (), CR, AMB, AB, SPEC,
                1 if EARLY else 0, 0, frozenset(), ((0, 0, (), 0),) if REG else (), None)

    def query(life):
        return 0 if SAMEQ else life

    def succ(st):
        g0 = dict(zip(N, st))
        rows, own, L, sink, lists, runs, att, logs = st[:8]
        q, p, f, pend, cr, am, ab, sp, ea, fg, dl, com, flag = st[8:]
        out = []

        def add(label, **k):
            g = dict(g0)
            g.update(k)
            # leave out what cannot matter any more: ended attempts nobody waits for, dead CASes in flight
            g['att'] = frozenset(a for a in g['att'] if a[3] not in ('ok', 'sk', 'x') or awaited(g['runs'][a[0]][1], a[2]))
            s = g['sink']
            g['pend'] = tuple(x for x in g['pend'] if x[0] != 'co' or (s and x[1] == s[0]))
            # drop at once what nobody can touch any more: it commutes with all else
            n, ro = g['L'], g['rows']
            while n < len(ro) and ro[n] in (DR, VO) and not any(a[5] == n // 2 and a[3] in 'wlpq' for a in g['att']) \
                    and not any(x[1] == n for x in g['pend'] if x[0] != 'co'):
                ro = tset(ro, n, ABS)
                n += 1
            g['L'], g['rows'] = n, ro
            out.append((label, tuple(g[n] for n in N)))

        def awaited(run, b):
            return run[1] == b and run[0] in ('wait', 'cl', 'cc')

        def setrow(b, s):
            return tset(rows, b, s)

        def setrun(r, *v):
            return tset(runs, r, (runs[r][0], v))

        def again(a):
            """An attempt died; Spark starts another while its driver waits."""
            return frozenset(att - {a} | ({a[:3] + ('a', 0, None, 0, 0)} if runs[a[0]][1][0] == 'wait' and runs[a[0]][1][1] == a[2] else set()))

        def late(*x):
            return dict(pend=tuple(sorted(pend + (x,), key=str)))

        def amb(*x):
            """Sent and unanswered: it may land at any later time. The sender sends it again, or dies."""
            return dict(late(*x), am=am - 1)

        def may(kind):
            return am and kind in AMBS

        def refused_owner(s, life):
            return (s[5] is not None or s[6] is not None) and s[5] != query(life)

        def load(who, ref, base):
            """The rows of a list, read after the row; None = read the row again."""
            if not LONG or not ref[1]:
                return ref[1]
            if {i: c for i, _, c in lists}.get(ref[0]) == ref[1]:
                return ref[1]
            if sink and sink[0] == base:
                add(f"{who}: the list {list(ref[1])} of the row is not there", flag='I7 the list of a committed batch is gone')
            return None

        def roll(who, listed, **failed):
            """One step of roll forward; False = nothing left to do."""
            for b in listed:
                if rows[b] == PR:
                    ghost = 'I4 delivered twice' if b in dl else None
                    add(f"{who}: rolls {b} forward; it is delivered and acked", rows=setrow(b, DR), dl=dl | {b}, flag=ghost)
                    return True
                if rows[b] in (WR, VO) and not (LROLL and b < L):
                    add(f"{who}: bucket {b} is listed and {rows[b]}: RowCorrupt", **failed,
                        flag='I10 RowCorrupt, but nothing is corrupt' if b in dl else 'I7 a listed bucket is not prepared')
                    return True
            return False

        def commit(r, who, life, b, es, ref):
            past = sink[7] if sink[6] in (None, r) else tuple(sorted(set(sink[7]) | {sink[6]}))
            tail = ref + (query(life), r, past)
            if es == {None}:
                add(f"{who}: {b} is committed; CAS run = {r}", sink=(sink[0] + 1,) + sink[1:3] + tail, runs=setrun(r, 'po', b, None))
                return
            ns = (sink[0] + 1, sink[1] + 1, b) + tail
            c = (life, b, ref[1], fg)
            add(f"{who}: COMMIT {b} {list(ref[1])}", sink=ns, com=com + (c,), runs=setrun(r, 'po', b, None))
            if may('co'):
                add(f"{who}: COMMIT {b} {list(ref[1])} in flight, driver dies", runs=setrun(r, *OVER), **amb('co', sink[0], ns, c))

        def aborted():
            return (sink[0] + 1, sink[1] + 1, sink[2], None, ()) + sink[5:]

        # ---- the network
        for x in pend:
            rest = tuple(y for y in pend if y is not x)
            if x[0] == 'co':
                add("net: in-flight COMMIT lands", sink=x[2], com=com + (x[3],), pend=rest)
            elif x[0] in ('iw', 'iv', 'is') and rows[x[1]] == ABS:
                s = {'iw': WR, 'iv': VO, 'is': SEALING}[x[0]]
                add(f"net: in-flight INSERT {s} of {x[1]} lands", rows=setrow(x[1], s), pend=rest)
            elif x[0] in ('cv', 'cp') and rows[x[1]] == WR:
                s = {'cv': VO, 'cp': PR}[x[0]]
                add(f"net: in-flight CAS writing -> {s} of {x[1]} lands", rows=setrow(x[1], s), pend=rest)
            elif x[0] == 'bv' and rows[x[1]] != ABS:
                add(f"net: in-flight void of {x[1]} (no condition) lands", rows=setrow(x[1], VO), pend=rest)

        # ---- attempts: admit and reserve, INSERT writing, read L, prepare and give back
        for a in att:
            r, t, b, pc, e, k, gen, u = a
            who = f"T{r}.{t}" + ('' if sum(x[:3] == a[:3] for x in att) == 1 else f" (block {k})")
            life, at = runs[r]

            def now(pc, u=u, e=e, k=k, gen=gen):
                return frozenset(att - {a} | {(r, t, b, pc, e, k, gen, u)})
            if pc == 'a':
                s = sink or (0, 1, -1, None, (), query(life), None, ())
                if life < fg and GONE == 'late':
                    add(f"{who}: is started no more", att=now('x'))
                elif refused_owner(s, life):
                    add(f"{who}: SinkIdReused", att=now('x'), flag='I10 SinkIdReused for the life that has begun' if life == fg else None)
                elif r in s[7]:
                    add(f"{who}: SinkFenced", att=now('x'))
                elif b < s[2]:
                    add(f"{who}: SinkDiverged", att=now('x'))
                elif b == s[2]:
                    add(f"{who}: {b} is committed already", att=now('sk'))
                else:
                    ns = sink or (1 + 10 * fg,) + s[1:]
                    add(f"{who}: {'' if sink else 'inserts the row, '}epoch {s[1]}, reserves {2 * len(own)}, {2 * len(own) + 1}", sink=ns,
                        rows=rows + (ABS, ABS), own=own + ((s[1], fg),), att=now('w', u=2 * len(own), e=s[1], k=len(own), gen=fg))
            elif pc == 'w':
                if rows[u] in (ABS, WR):     # its own: the first one has landed
                    add(f"{who}: INSERT writing {u}", rows=setrow(u, WR), att=now('l' if LCHK else 'p'))
                else:
                    add(f"{who}: INSERT writing {u} refused ({rows[u]})", att=now('w', u=u + 1) if u == 2 * k else now('x'))
                if may('iw'):
                    add(f"{who}: INSERT writing {u} in flight, sends it again", **amb('iw', u))
            elif pc == 'l':
                if u < L:
                    add(f"{who}: reads L = {L}", att=now('w', u=u + 1) if u == 2 * k else now('x'))
                    continue
                if 0 in OPEN or u > 2 * k:
                    add(f"{who}: reads L = {L}, fills {u}", att=now('p'))
                if 1 in OPEN and u == 2 * k and rows[u + 1] == ABS:
                    kw = dict(rows=setrow(u + 1, WR), att=now('q'))
                    add(f"{who}: reads L = {L}, fills {u}, opens {u + 1} ahead", **kw)
                    if may('iw'):
                        add(f"{who}: reads L = {L}, fills {u}, opens {u + 1} ahead; a copy of the INSERT in flight", **kw, **amb('iw', u + 1))
            elif pc in ('p', 'q'):           # q: the second bucket was opened ahead
                if ea:
                    add(f"{who}: gives {u} back, unanswered; more rows come, it goes on with {u}", ea=0, **late('bv' if EARLY == 'blind' else 'cv', u))
                if rows[u] != WR:
                    add(f"{who}: {u} is {rows[u]}: SinkFenced", att=now('x'))
                elif u > 2 * k:
                    add(f"{who}: {u} prepared", rows=setrow(u, PR), att=now('ok'))
                else:
                    o = u + 1
                    done = dict(rows=setrow(u, PR), att=now('ok'))
                    can = rows[o] == (WR if pc == 'q' else ABS)
                    given = tset(setrow(u, PR), o, VO) if can else setrow(u, PR)
                    add(f"{who}: {u} prepared, {o} {'given back' if can else 'is ' + rows[o]}", rows=given, att=now('ok'))
                    if NAMED:
                        add(f"{who}: {u} prepared, {o} given back, {u} too, but named", rows=tset(given, u, VO), att=now('ok'))
                    if may('cv' if pc == 'q' else 'iv'):
                        add(f"{who}: {u} prepared, giving {o} back in flight", **done, **amb('cv' if pc == 'q' else 'iv', o))
                    if cr:
                        add(f"crash {who} ({u} prepared)", cr=cr - 1, rows=setrow(u, PR), att=again(a))
                if may('cp'):
                    add(f"{who}: CAS prepared of {u} in flight, sends it again", **amb('cp', u))
            if cr and pc not in ('a', 'ok', 'sk', 'x'):
                add(f"crash {who} ({pc})", cr=cr - 1, att=again(a))

        # ---- drivers. Read and CAS are one step where nothing is read or written between: refused, it reads again
        def launch(r, b):
            return frozenset((r, t, b, 'a', 0, None, 0, 0) for t in range(T))
        alive = [r for r, (life, x) in enumerate(runs) if life == fg and x[0] != 'end']
        if not f and len(alive) < D and logs[fg] < B - 1 and len(runs) < RUNS and sum(life == fg for life, _ in runs) < PER:
            b = logs[fg] + 1
            add(f"life {fg}: run {len(runs)} starts, batch {b} launched", runs=runs + ((fg, ('wait', b, None)),), att=att | launch(len(runs), b))
        for r, (life, (pc, b, mem)) in enumerate(runs):
            who = f"run{r}"
            if pc == 'end':
                continue
            if pc == 'wait':
                mine = [[a for a in att if a[:3] == (r, t, b)] for t in range(T)]
                ends = [[a for a in m if a[3] in ('ok', 'sk')] for m in mine]
                if any(not w and m and all(a[3] == 'x' for a in m) for m, w in zip(mine, ends)):
                    add(f"{who}: job failed", runs=setrun(r, *OVER))
                for win in product(*ends):
                    es = frozenset(a[4] if a[3] == 'ok' else None for a in win)
                    listed = tuple(sorted(a[7] for a in win if a[3] == 'ok'))
                    s = sink
                    fail = None
                    if s is None:
                        fail = 'the row is gone: SinkFenced'
                    elif refused_owner(s, life):
                        fail = 'SinkIdReused'
                    elif r in s[7]:
                        fail = 'SinkFenced'
                    elif b < s[2]:
                        fail = 'SinkDiverged'
                    elif b == s[2]:
                        if s[6] == r:
                            add(f"{who}: {b} is committed and mine", runs=setrun(r, 'po', b, None))
                            continue
                        if es != {None}:
                            fail = 'committed by another run: SinkFenced'
                    elif es != {s[1]}:
                        fail = f'epochs {sorted(es, key=str)}, the row has {s[1]}: SinkFenced'
                    if fail:
                        add(f"{who}: {fail}", runs=setrun(r, *OVER))
                    elif LONG:
                        add(f"{who}: reads the row (epoch {s[1]})", runs=setrun(r, 'cl', b, (es, listed, s[0], s[3:5])))
                    elif es == {None} or not roll(who, s[4], runs=setrun(r, *OVER)):
                        commit(r, who, life, b, es, (None, s[4] if es == {None} else listed))
                if sp:
                    for m in mine:
                        if len(m) == 1 and m[0][3] in ('w', 'l', 'p', 'q'):
                            add(f"{who}: Spark starts a second attempt", att=att | {m[0][:3] + ('a', 0, None, 0, 0)}, sp=sp - 1)
            elif pc == 'cl':
                es, listed, base, ref = mem
                earlier = load(who, ref, base)
                if earlier is None or sink[0] != base:
                    add(f"{who}: the row has moved on", runs=setrun(r, 'wait', b, None))
                elif es == {None} or not roll(who, earlier, runs=setrun(r, *OVER)):
                    keep = earlier if es == {None} else listed
                    i = sink[1] if KEY == 'epoch' else (who, base)
                    add(f"{who}: writes the list {list(keep)} under {i}", runs=setrun(r, 'cc', b, (es, listed, base, (i, keep))),
                        lists=frozenset(x for x in lists if x[0] != i) | {(i, base, keep)})
            elif pc == 'cc':
                es, listed, base, ref = mem
                if sink is None or sink[0] != base:
                    add(f"{who}: CAS refused, reads again", runs=setrun(r, 'wait', b, None))
                else:
                    commit(r, who, life, b, es, ref)
            elif pc == 'po':
                more = b + 1 < B and not (life < fg and GONE == 'late')
                add(f"{who}: Spark's commit log {b}" + (f"; batch {b + 1} launched" if more else ''), logs=tset(logs, life, max(logs[life], b)),
                    runs=setrun(r, 'wait', b + 1, None) if more else setrun(r, *OVER), att=att | launch(r, b + 1) if more else att)
            if cr and pc in ('wait', 'cl', 'cc', 'po'):
                add(f"crash {who} ({pc}); its tasks go on", cr=cr - 1, runs=setrun(r, *OVER))

        # ---- a reader or repair: it looks at any bucket, its own pointer may be as old as it likes
        if q is None:
            for b, s in enumerate(rows):
                e = own[b // 2][0]
                if s == ABS and b >= L:
                    add(f"Q: {b}: no row for the gap timeout: closes it (INSERT sealing, reads L, it is empty)", rows=setrow(b, VO))
                    if may('is'):
                        add(f"Q: {b}: no row for the gap timeout: INSERT sealing in flight, Q dies", **amb('is', b))
                elif s == SEALING and b >= L:
                    add(f"Q: {b} is sealing; reads L after it; closes it, it is empty", rows=setrow(b, VO))
                elif s in (WR, PR) and (sink is None or e < sink[1]):
                    if STALE or LONG:
                        add(f"Q: {b} is {s} of epoch {e}; reads the row (epoch {sink and sink[1]})", q=('l', b, sink and (sink[0], sink[1], sink[3:5])))
                    elif e == sink[1] - 1 and b in sink[4]:
                        roll('Q', sink[4])
                    else:
                        add(f"Q: {b} is {s} of epoch {e}, the row has {sink[1]}: void", rows=setrow(b, VO))
        else:
            b, at = q[1:]
            listed = load('Q', at[2], at[0]) if at and own[b // 2][0] == at[1] - 1 else ()
            if listed is None:
                add("Q: the row has moved on, reads again", q=None)
            elif b not in listed:
                add(f"Q: voids {b}", rows=setrow(b, VO) if rows[b] in (WR, PR) else rows, q=None)
            elif not roll('Q', listed, q=None):
                add("Q: rolled forward", q=None)

        # ---- repair: drop, abort, clean lists
        if L < len(rows) and rows[L] in (DR, VO):
            add(f"P: L = {L + 1}, deletes row {L}", L=L + 1, rows=setrow(L, ABS))
        for b in range(L):
            if rows[b] != ABS:
                add(f"P: deletes the ghost row {b}", rows=setrow(b, ABS))
        idle = not f and all(x[0] == 'end' for _, x in runs) and not att
        if p is None:
            if sink and any(s in (WR, PR) and own[b // 2][0] >= sink[1] for b, s in enumerate(rows)) and (ab or idle):
                if LONG:
                    add(f"P: no sign of life in epoch {sink[1]}", p=('l', sink[0], sink[3:5]), ab=ab if idle else ab - 1)
                elif not roll('P', sink[4]):
                    add(f"P: no sign of life: aborts epoch {sink[1]}", sink=aborted(), ab=ab if idle else ab - 1)
            for i, base, _ in sorted(lists, key=str) if CLEAN else ():
                if sink and sink[3] != i and (CLEAN == 'naive' or sink[0] != base):
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
        if fg < FG and sink and not f:
            add("F: forget_sink" + (": its drivers are dead" if GONE == 'dead' else ""), f=('f',),
                runs=tuple((life, OVER) for life, _ in runs) if GONE == 'dead' else runs)
        elif f == ('f',) and LONG:
            add(f"F: reads the row (epoch {sink[1]})", f=('l', sink[0], sink[3:5]))
        elif f:
            listed = load('F', f[2], f[1]) if LONG else sink[4]
            if listed is None or LONG and sink[0] != f[1]:
                add("F: the row has moved on, reads again", f=('f',))
            elif not (FROLL and roll('F', listed, f=None)):
                past = sink[7] if sink[6] is None or not FPAST else tuple(sorted(set(sink[7]) | {sink[6]}))
                ns = None if FORGET == 'delete' else (sink[0] + 1, sink[1] + 1, -1, None, (), None, None, past)
                add(f"F: forgets: {'deletes the row' if ns is None else f'epoch {ns[1]}, no owner'}", sink=ns, fg=fg + 1, f=None)
        return out

    def bad(st):
        g = dict(zip(N, st))
        rows, own, L, dl, com = g['rows'], g['own'], g['L'], g['dl'], g['com']
        if g['flag']:
            yield g['flag']
        if len({c[:2] for c in com}) < len(com):
            yield 'I7 a batch committed twice'
        listed = set()
        for life, b, bs, fg in com:
            listed.update(bs)
            if life < fg:
                yield 'I7 a run of a former life commits in the new one'
            if any(own[x // 2][1] != fg for x in bs):
                yield 'I7 buckets of a former life become visible in the new one'
        for b in listed:
            if b not in dl and (rows[b] != PR or b < L):
                yield 'I7 a committed bucket cannot be delivered'
        if not dl <= listed:
                yield 'I7 a bucket of an uncommitted batch is visible'

    def stuck(st):
        g = dict(zip(N, st))
        for life, (pc, b, mem) in g['runs']:
            if pc != 'end':
                yield f'stuck driver in {pc}'
        for a in g['att']:
            yield f'stuck attempt in {a[3]}'
        for b, s in enumerate(g['rows']):
            if b >= g['L']:
                yield f'I10 a bucket is {s} for ever'
        for life, b, bs, fg in g['com']:
            if not g['dl'].issuperset(bs):
                yield 'I10 a committed bucket is never delivered'
        if CLEAN and any(not g['sink'] or i != g['sink'][3] and base != g['sink'][0] for i, base, _ in g['lists']):
            yield 'leak: a list stays for ever'
    return init, succ, bad, stuck


RUNS = [
    ('h0 forget deletes the row, epoch restarts: a late task makes the row anew', dict(forget='delete', forgets=1, tasks=2, crashes=0, amb=0)),
    ('h0b forget deletes the row, the same query again, its former driver has not ended', dict(forget='delete', forgets=1, sameq=True, gone='late',
                                                                                             crashes=0, amb=0)),
    ('h1 list keyed by (sink, epoch), two drivers', dict(key='epoch', long=True, drivers=2, crashes=0, amb=0)),
    ('h2 the owner voids what it has named', dict(named=True, crashes=0, amb=0)),
    ('h2b void without a condition, unanswered; the owner uses the bucket after all', dict(early='blind', crashes=0, amb=0)),
    ('h3 repair deletes every list that the row does not name', dict(long=True, clean='naive', crashes=0, amb=0)),
    ('h4 roll forward takes a ghost for corruption', dict(lroll=False, crashes=0)),
    ('h5 forget of a life that is not gone', dict(forgets=1, gone='alive', reg=True, batches=2, crashes=0, ambs=('co',))),
    ('h6 the writer does not read L after its INSERT', dict(lchk=False, crashes=0)),
    ('h7 forget does not roll forward first', dict(froll=False, forgets=1, crashes=0, amb=0)),
    ('h8 forget does not remember the former run', dict(fpast=False, forgets=1, gone='alive', reg=True, per=1, batches=2, crashes=0, amb=0)),
    ('H0 one driver, crash, CAS in flight', dict()),
    ('H0b', dict(open=(0, 1), amb=1, crashes=0, aborts=1)),
    ('H0c', dict(ambs=('is', 'iw'), crashes=1)),
    ('H0d', dict(crashes=2, amb=0, runs=2)),
    ('H1 two drivers', dict(drivers=2, crashes=0, aborts=1)),
    ('H1b two drivers', dict(drivers=2, crashes=1, amb=0)),
    ('H2', dict(tasks=2, runs=1, spec=1, crashes=0)),
    ('H2b', dict(tasks=2, runs=1, crashes=1,amb=1)),
    ('H3', dict(batches=2, runs=2, crashes=1, amb=0)),
    ('H3b', dict(batches=2, runs=2, crashes=0, amb=1)),
    ('H4', dict(forgets=1, crashes=0, amb=1, stale=True)),
    ('H4a', dict(forgets=1, crashes=1, amb=0)),
    ('H4b', dict(forgets=1, sameq=True, gone='late', crashes=0, amb=1)),
    ('H4c', dict(forgets=1, gone='alive', reg=True, per=1, batches=2, crashes=0, amb=1)),
    ('H5', dict(long=True, drivers=2, clean='based', crashes=0, amb=0)),
    ('H5a', dict(long=True, drivers=1, clean='based', crashes=1, amb=0)),
    ('H5b', dict(long=True, clean='based', forgets=1, crashes=0, amb=0)),
    ('H6', dict(early='cas', crashes=0, amb=0)),
    ('H7', dict(forgets=2, runs=3,crashes=0, amb=0)),
    ('H8', dict(runs=1, amb=2, ambs=('iw','cp'), crashes=0)),
]
if __name__ == '__main__':
    which = sys.argv[1].split(',') if len(sys.argv) > 1 else ['all']
    for name, cfg in RUNS:
        if 'all' in which or name.split()[0] in which:
            mccheck(name, *mk(cfg), max_states=int(sys.argv[2]) if len(sys.argv) > 2 else 1_500_000, max_s=int(sys.argv[3]) if len(sys.argv) > 3 else 110)
