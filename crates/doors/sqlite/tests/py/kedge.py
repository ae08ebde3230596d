"""What the scripts share: connections to databases in an image."""
import os, sqlite3, sys

EXTENSION = os.environ["EXTENSION"]
IMAGE = os.environ["IMAGE"]

loader = sqlite3.connect(":memory:", check_same_thread=False)
loader.enable_load_extension(True)
loader.load_extension(EXTENSION)


def connect(path="/app.db", mode="delete", timeout=5.0, parameters=""):
    db = sqlite3.connect(
        f"file:{IMAGE}:{path}?vfs=kedgefs{parameters}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=timeout,
    )
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("pragma synchronous=full")
    return db


def last_error():
    return loader.execute("select kedgefs_error()").fetchone()[0]


def check(db):
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
