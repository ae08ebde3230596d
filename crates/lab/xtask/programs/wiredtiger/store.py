"""WiredTiger with a log that each commit syncs. Arguments: run COUNT, check, version; backup
DIR: a backup of a database with three keys is put there; open: the backup is opened for the first
time; check-backup: it has its keys."""
import os
import shutil
import sys

import wiredtiger

LOGGED = "create,log=(enabled=true,file_max=100K,prealloc=false),transaction_sync=(enabled=true,method=fsync)"

# A backup has a checkpoint, and needs no log.
PLAIN = "create"
BACKED_UP = 3


def value(n):
    return f"value{n}." * 300


def open_in(home, settings):
    os.makedirs(home, exist_ok=True)
    session = wiredtiger.wiredtiger_open(home, settings).open_session()
    session.create("table:zoo", "key_format=i,value_format=S")
    return session, session.open_cursor("table:zoo")


def run(home, count):
    session, cursor = open_in(home, LOGGED)
    for n in range(count):
        session.begin_transaction()
        cursor[n] = value(n)
        session.commit_transaction()
        print("ack", n, flush=True)
    # Without a close: power fails while a program runs.
    os._exit(0)


def check(home, settings, count):
    try:
        session, cursor = open_in(home, settings)
    except wiredtiger.WiredTigerError as error:
        print("does not open:", error)
        os._exit(1)
    for n in range(count):
        cursor.set_key(n)
        if cursor.search() != 0 or cursor.get_value() != value(n):
            print(f"key {n} was promised and is not there")
            os._exit(1)
    os._exit(0)


def backup(to):
    session, cursor = open_in("original", PLAIN)
    for n in range(BACKED_UP):
        session.begin_transaction()
        cursor[n] = value(n)
        session.commit_transaction()
    session.checkpoint()
    os.makedirs(to)
    names = session.open_cursor("backup:")
    while names.next() == 0:
        shutil.copy(f"original/{names.get_key()}", to)


def open_backup(home):
    open_in(home, PLAIN)
    print("ack opened", flush=True)
    os._exit(0)


task = sys.argv[1]
if task == "version":
    print(wiredtiger.WIREDTIGER_VERSION_STRING.split()[1].rstrip(":"))
elif task == "check":
    check("zoo", LOGGED, int(os.environ["KEDGE_ACKED_COUNT"]))
elif task == "check-backup":
    check("zoo", PLAIN, BACKED_UP)
elif task == "backup":
    backup(sys.argv[2])
else:
    os.chdir(os.environ["KEDGE_DIR"])
    run("zoo", int(sys.argv[2])) if task == "run" else open_backup("zoo")
