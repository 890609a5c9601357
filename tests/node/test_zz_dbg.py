from cassieq_spark.queue import seal
from cassieq_spark.store import portal
from cassieq_spark.queue.get import unsealed
from tests.fixtures.queues import *
from cassieq_spark.testing import *
def test_x(open_door):
    door, watch = open_door(), open_door()
    portal.run(seal.close(door.lane, door.put(*(b"sealed" for _ in range(10)))))
    for _ in range(2):
        door.reserve()
    reader = door.reader()
    old = unsealed.OpenBuckets._ripe
    async def rp(self, scan, **k):
        r = await old(self, scan, **k)
        print("RIPE", k, scan.open, scan.oldest_later_us, self._looked_at, r, self._lane.clock.now_us())
        return r
    unsealed.OpenBuckets._ripe = rp
    door.clock.advance(60)
    oc = unsealed.OpenBuckets.claim
    async def cl(self, scan, claimer, round_, **k):
        print("CLAIM", k, round_.budget, len(round_.claimed), list(round_.rows))
        await oc(self, scan, claimer, round_, **k)
    unsealed.OpenBuckets.claim = cl
    claimed = portal.run(reader.get(100))
    print([ (c.bucket,c.lease.runs.count) for c in claimed])
    assert 0
