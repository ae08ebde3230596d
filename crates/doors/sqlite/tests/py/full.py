"""An image without room: the transaction fails, the database stays whole and usable."""
from kedge import *

db = connect("/full.db", sys.argv[1])
db.execute("create table t (x)")
db.execute("insert into t values ('kept')")
try:
    while True:
        db.execute("insert into t values (randomblob(500000))")
except sqlite3.OperationalError as e:
    assert "full" in str(e), e
check(db)
assert db.execute("select count(*) from t where x = 'kept'").fetchone() == (1,)
db.execute("update t set x = 'changed' where x = 'kept'")
check(db)
db.close()
db = connect("/full.db", sys.argv[1])
assert db.execute("select count(*) from t where x = 'changed'").fetchone() == (1,)
print("done")
