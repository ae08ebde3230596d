"""Commits transactions of two tables that belong together, and prints each when it is durable."""
from kedge import *

journal, synchronous, count = sys.argv[1:]
db = connect("/app.db", journal)
db.execute(f"pragma synchronous={synchronous}")
db.execute("create table a (n)")
db.execute("create table b (n, filler)")
print(0, flush=True)
for n in range(1, int(count) + 1):
    db.execute("begin")
    db.execute("insert into a values (?)", (n,))
    db.execute("insert into b select ?, randomblob(3000) from (select 1 union all select 2)", (n,))
    db.execute("commit")
    print(n, flush=True)
