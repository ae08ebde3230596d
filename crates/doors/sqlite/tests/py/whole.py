"""Whether all of `killed.py` is there: what it printed last is the argument."""
from kedge import *

db = connect("/app.db", sys.argv[1])
check(db)
a = [row[0] for row in db.execute("select n from a order by n")]
b = [row[0] for row in db.execute("select n from b order by n")]
assert a == list(range(1, len(a) + 1)), a
assert b == [n for n in a for _ in range(2)], (a, b)
assert len(a) >= int(sys.argv[2]), (len(a), sys.argv[2])
print("done", len(a))
