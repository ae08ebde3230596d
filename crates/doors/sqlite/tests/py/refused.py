"""Names and images that are refused, with a text that says why."""
from kedge import *


def refused(uri, why):
    try:
        sqlite3.connect(uri, uri=True).execute("create table t (x)")
    except sqlite3.OperationalError as e:
        assert "unable to open" in str(e), e
        assert why in last_error(), (uri, last_error())
        return
    raise AssertionError(f"{uri} was opened")


refused("file:app.db?vfs=kedgefs", "no image is named")
refused("file:/nowhere/disk:/app.db?vfs=kedgefs", "No such file")
refused(f"file:{IMAGE}:/no/such/dir/app.db?vfs=kedgefs", "no such file")
refused(f"file:{IMAGE}:/app.db?vfs=kedgefs&options=nonsense", "nonsense")
refused(f"file:/app.db?vfs=kedgefs&image=/dev/null", "/dev/null")
refused(f"file:{IMAGE}:/?vfs=kedgefs", "names no file")
db = connect("/app.db", parameters="&options=commit%3D1")
db.execute("create table t (x)")
refused(f"file:{IMAGE}:/none.db?vfs=kedgefs&mode=ro", "no such file")
only = sqlite3.connect(f"file:{IMAGE}:/app.db?vfs=kedgefs&mode=ro", uri=True)
try:
    only.execute("insert into t values (1)")
    raise AssertionError("written")
except sqlite3.OperationalError as e:
    assert "readonly" in str(e), e
# A child of this process must not use the image of its parent.
child = os.fork()
if child == 0:
    try:
        db.execute("insert into t values (1)")
        os._exit(1)
    except sqlite3.OperationalError:
        os._exit(0 if "forked" in last_error() else 2)
assert os.waitpid(child, 0)[1] == 0
db.execute("insert into t values (2)")
assert db.execute("select x from t").fetchall() == [(2,)]
# By the environment, and by the parameter.
os.environ["KEDGEFS_SQLITE_IMAGE"] = IMAGE
assert sqlite3.connect("file:app.db?vfs=kedgefs", uri=True).execute("select x from t").fetchall() == [(2,)]
del os.environ["KEDGEFS_SQLITE_IMAGE"]
named = sqlite3.connect(f"file:app.db?vfs=kedgefs&image={IMAGE}", uri=True)
assert named.execute("select x from t").fetchall() == [(2,)]
print("done")
