"""Commits transactions of two tables that belong together, and prints each, until it is killed."""
from kedge import *

db = connect("/app.db", sys.argv[1])
db.execute("create table if not exists a (n)")
db.execute("create table if not exists b (n, filler)")
n = db.execute("select coalesce(max(n), 0) from a").fetchone()[0]
while True:
    n += 1
    db.execute("begin")
    db.execute("insert into a values (?)", (n,))
    db.execute("insert into b select ?, randomblob(3000) from (select 1 union all select 2)", (n,))
    db.execute("commit")
    print(n, flush=True)
