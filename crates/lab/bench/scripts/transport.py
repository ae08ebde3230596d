#!/usr/bin/env python3
"""The cost of an operation on a mount: requests, context switches, processor time, wall time.

    sudo transport.py --dir DIR [--rounds N] [--scale F] [--only LOAD]... NAME=PROGRAM...

Each NAME=PROGRAM is a contestant: a `kedge`, the example `null` of kedge-fuse (a file system in
memory with the same transport: the lower bound), or the word `ext4`. All are mounted at the same
time and take turns on each load, so that other load on the machine affects all of them. The table
has medians. Counts and processor time are meaningful on a busy machine too; wall time is not.

- req: FUSE requests. sw: context switches of all threads of the serving process, voluntary and
  not. cpu: processor time of the serving process, user and system, in steps of 10 ms over the whole
  turn. wall: the inverse of the rate.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

HZ = os.sysconf("SC_CLK_TCK")


def sh(*words, **more):
    return subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


class Side:
    """A contestant, mounted."""

    def __init__(self, name, program, base, size):
        self.name, self.dir, self.process = name, base / name, None
        self.dir.mkdir()
        image = base / f"{name}.img"
        if program == "ext4":
            with open(image, "wb") as f:
                f.truncate(size)
            sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
            sh("mount", "-o", "loop", image, self.dir)
            self.pid = None
            return
        if Path(program).name.startswith("null"):
            command = [program, self.dir]
        else:
            with open(image, "wb") as f:
                f.truncate(size)
            sh(program, "mkfs", image)
            command = [program, "mount", "--foreground", image, self.dir]
        self.process = subprocess.Popen([str(w) for w in command])
        for _ in range(500):
            if os.path.ismount(self.dir):
                break
            time.sleep(0.02)
        self.pid = self.process.pid
        assert self.counters(), f"{name} does not serve"

    def counters(self):
        if not self.pid:
            return None
        stats = json.loads(os.getxattr(self.dir, "system.kedgefs.stats"))
        switches = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/status") as status:
                switches += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
        with open(f"/proc/{self.pid}/stat") as stat:
            times = stat.read().rsplit(")", 1)[1].split()
        cpu = (int(times[11]) + int(times[12])) / HZ
        return sum(stats["fuse"]["requests"].values()), switches, cpu

    def end(self):
        sh("umount", self.dir)
        if self.process:
            self.process.wait()


class Load:
    def __init__(self, name, operations, run, prepare=lambda work: None):
        self.name, self.operations, self.run, self.prepare = name, operations, run, prepare


def fs_mark(threads, sync, files):
    # In runs of few files: fs_mark requires space for a whole run, and the null file system reports little.
    each = min(files, 800) // threads
    runs = max(1, files // (each * threads))

    def run(work):
        # fs_mark accepts no long paths.
        options = ["-D", 16, "-t", threads, "-L", runs, "-n", each, "-s", 4096, "-S", sync, "-k"]
        sh("fs_mark", "-d", "work", *options, cwd=work.parent)

    return Load(f"fs_mark S{sync}, {threads}", runs * each * threads, run)


def create(files):
    def run(work):
        for i in range(files):
            os.close(os.open(work / f"f{i}", os.O_CREAT | os.O_WRONLY))

    return Load("create empty", files, run)


def trees(files, base):
    """Unpacking and removing a tree of small files."""
    archive = base / "tree.tar"
    with tempfile.TemporaryDirectory(dir=base) as tree, tarfile.open(archive, "w") as tar:
        for i in range(files):
            path = Path(tree) / f"d{i % 50}" / f"f{i}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * (i % 8192))
        tar.add(tree, "tree")

    def untar(work):
        sh("tar", "-xf", archive, "-C", work)

    def remove(work):
        sh("rm", "-r", work / "tree")

    return [Load("untar", files, untar), Load("rm -r", files, remove, untar)]


def sequential(mib):
    block = b"x" * (1 << 20)

    def write(work):
        with open(work / "file", "wb", buffering=0) as f:
            for _ in range(mib):
                f.write(block)

    def prepare(work):
        write(work)
        os.sync()

    def read(work):
        with open(work / "file", "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while f.read(1 << 20):
                pass

    return [Load("write 1 MiB", mib, write), Load("read 1 MiB", mib, read, prepare)]


def turn(side, load):
    work = side.dir / "work"
    if work.exists():
        shutil.rmtree(work)
    work.mkdir()
    load.prepare(work)
    os.sync()
    before, began = side.counters(), time.monotonic()
    load.run(work)
    wall, after = time.monotonic() - began, side.counters()
    n = load.operations
    counts = [now - then for now, then in zip(after, before)] if before else [float("nan")] * 3
    return [counts[0] / n, counts[1] / n, counts[2] * 1e6 / n, wall * 1e6 / n]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, default=Path("."))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=2 << 30)
    parser.add_argument("--only", action="append")
    parser.add_argument("sides", nargs="+")
    args = parser.parse_args()
    n = lambda count: max(16, int(count * args.scale))
    base = Path(tempfile.mkdtemp(prefix="transport-", dir=args.dir.resolve()))
    sides = []
    try:
        loads = [fs_mark(threads, 0, n(8000)) for threads in (1, 4, 16)]
        loads += [fs_mark(threads, 1, n(count)) for threads, count in ((1, 1500), (4, 3000), (16, 6000))]
        loads += [create(n(8000)), *trees(n(8000), base), *sequential(n(256))]
        loads = [load for load in loads if not args.only or any(word in load.name for word in args.only)]
        for side in args.sides:
            name, _, program = side.partition("=")
            sides.append(Side(name, program or name, base, args.size))
        results = {(load.name, side.name): [] for load in loads for side in sides}
        for load in loads:
            for _ in range(args.rounds):
                for side in sides:
                    results[load.name, side.name].append(turn(side, load))
        print(f"{args.rounds} rounds, medians, load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors\n")
        print("| load | contestant | req/op | sw/op | cpu µs/op | wall µs/op |")
        print("|---|---|---|---|---|---|")
        for (load, side), turns in results.items():
            medians = [statistics.median(column) for column in zip(*turns)]
            shown = ["–" if value != value else f"{value:.{digits}f}" for value, digits in zip(medians, (2, 2, 1, 1))]
            print(f"| {load} | {side} | {' | '.join(shown)} |")
    finally:
        for side in sides:
            side.end()
        shutil.rmtree(base)


main()
