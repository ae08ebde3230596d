"""A program that uses the library in its process and promises what it has synced, and its check.

saver.py save ROUNDS       below $KEDGE_DIR, in the image disk.kedge
saver.py forget ROUNDS     the same without the sync of a name
saver.py check             in a crash state: its working directory
"""

import os
import sys

import kedgefs

FILES = 3
# Bytes that a crash may leave old or new each for itself, until a sync.
SECTOR, SECTORS = 512, 96


def text(number):
    return b"%05d;" % number * (number % 11 * 90 + 1)


def save(rounds, forget=False):
    fs = kedgefs.open(os.path.join(os.environ["KEDGE_DIR"], "disk.kedge"), commit=300)
    log = fs.open("log", "ab", 0)
    for number in range(rounds):
        name = f"note-{number % FILES}"
        with fs.open("new", "wb") as f:
            f.write(text(number))
            fs.fsync(f)
            fs.replace("new", name)
        if not forget:
            fs.fsync("/")
        print("saved", number, flush=True)
        log.write(b"%d\n" % number)
        log.fdatasync()
        print("logged", number, flush=True)
        with fs.open("loose", "r+b" if number else "wb") as f:
            f.write((b"%0511d\n" % number) * SECTORS)
        fs.sync()
        print("synced", number, flush=True)
    # As a program that is killed: close() would do more than was promised.
    os._exit(0)


def check():
    promised = os.environ.get("KEDGE_ACKED", "").split("\n")
    last = {word: max([int(line.split()[1]) for line in promised if line.startswith(word)], default=-1) for word in ("saved", "logged", "synced")}
    with kedgefs.open("disk.kedge") as fs:
        names = fs.listdir()
        logged = [int(line) for line in fs.read_bytes("log").split(b"\n")[:-1]] if "log" in names else []
        assert logged == list(range(len(logged))), f"the log has {logged}"
        assert len(logged) > last["logged"], f"the log ends with {logged[-1:]}, and {last['logged']} was promised"
        if last["synced"] >= 0:
            loose = [int(sector) for sector in fs.read_bytes("loose").split(b"\n")[:-1]]
            assert len(loose) == SECTORS and min(loose) >= last["synced"], f"{loose}, and {last['synced']} was promised"
        for at in range(FILES):
            # The newest that was promised under this name, if any.
            newest = max((n for n in range(last["saved"] + 1) if n % FILES == at), default=None)
            if f"note-{at}" not in names:
                assert newest is None, f"note-{at} is gone, and {newest} was promised"
                continue
            found = fs.read_bytes(f"note-{at}")
            number = int(found[:5])
            assert found == text(number), f"note-{at} is torn: {found[:20]!r}, {len(found)} bytes"
            assert newest is None or number >= newest, f"note-{at} is {number}, and {newest} was promised"


if __name__ == "__main__":
    check() if sys.argv[1] == "check" else save(int(sys.argv[2]), sys.argv[1] == "forget")
