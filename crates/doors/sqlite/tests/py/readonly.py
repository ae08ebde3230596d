"""A write to a database in an image that is open read-only is refused as such."""
from kedge import *

db = connect()
db.execute("create table t (x)")
db.close()
db = sqlite3.connect(f"file:{IMAGE}:/app.db?vfs=kedgefs&options=ro", uri=True)
assert db.execute("select count(*) from t").fetchone() == (0,)
try:
    db.execute("insert into t values (1)")
    raise AssertionError("written")
except sqlite3.OperationalError as e:
    assert "readonly" in str(e), e
print("done")
