"""Commits one after the other. Prints how long they took, without the start. Arguments: store, count."""
import glob
import os
import sqlite3
import subprocess
import sys
import time

import kv_store

store, count = sys.argv[1], int(sys.argv[2])
os.chdir(os.environ["KEDGE_DIR"])


def sqlite():
    db = sqlite3.connect("t.db", isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    db.execute("create table t(id integer primary key, v blob)")
    return lambda n: db.execute("insert into t values(?, ?)", (n, kv_store.value(b"%d" % n)))


def postgres():
    programs, run = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], os.environ["PROGRAM_TEMP"] + "/run"

    def as_postgres(command, **more):
        subprocess.run(["su", "postgres", "-s", "/bin/sh", "-c", f"cd /; {command}"], check=True, **more)

    server = f"{programs}/pg_ctl -s -w -D {os.getcwd()}/data -l {run}/log"
    client = f"psql -qAt -h {run} -d postgres"
    as_postgres(f"{server} start")
    as_postgres(f"{client} -c 'create table t(v text)'")
    start = time.monotonic()
    as_postgres(client, input="insert into t values (repeat('n', 900));\n" * count, text=True)
    print("seconds", time.monotonic() - start)
    as_postgres(f"{server} -m immediate stop")


if store == "postgres":
    postgres()
else:
    put = sqlite() if store == "sqlite" else None
    if put is None:
        opened = kv_store.STORES[store](sys.argv[3])
        put = lambda n: opened.put(b"%d" % (n % 100), kv_store.value(b"%d" % n))
    start = time.monotonic()
    for n in range(count):
        put(n)
    print("seconds", time.monotonic() - start)
