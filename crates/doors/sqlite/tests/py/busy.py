"""The image is open in another process."""
from kedge import *

try:
    connect("/app.db")
    raise AssertionError("opened")
except sqlite3.OperationalError:
    print(last_error())
