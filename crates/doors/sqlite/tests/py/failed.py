"""Whether all of `power.py` is there after a power failure: it printed $KEDGE_ACKED before."""
from kedge import *

printed = [int(line) for line in os.environ["KEDGE_ACKED"].split()]
db = connect("/app.db", sys.argv[1])
check(db)
if not printed:
    sys.exit()
a = [row[0] for row in db.execute("select n from a order by n")]
b = [row[0] for row in db.execute("select n from b order by n")]
assert a == list(range(1, len(a) + 1)), a
assert b == [n for n in a for _ in range(2)], (a, b)
assert len(a) in (printed[-1], printed[-1] + 1), (len(a), printed[-1])
