"""What a call of the package costs beside the same call of the Rust library, in one run.

Usage: overhead.py [CALLS]. The Rust program is crates/doors/python/examples/calls.rs.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import kedgefs

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
ROUNDS = 5
# That of the installed package.
PROFILE = os.environ.get("KEDGEFS_WHEEL_PROFILE", "release")
ROOT = Path(__file__).resolve().parent.parent


def each(call):
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def in_python():
    with kedgefs.memory() as fs:
        fs.makedirs("a/b")
        fs.write_bytes("a/b/file", bytes(1 << 20))
        file, buffer, page = fs.open("a/b/file", "r+b", 0), bytearray(4096), bytes(4096)
        calls = {
            "nothing": lambda: None,
            "stat": lambda: fs.stat("/a/b/file"),
            "pread 4 KiB": lambda: file.pread(4096, 8192),
            "pwrite 4 KiB": lambda: file.pwrite(page, 8192),
        }
        return {name: each(call) for name, call in calls.items()}


def in_rust():
    command = ["cargo", "run", "--quiet", "--profile", PROFILE, "-p", "kedgefs-python", "--example", "calls", "--", str(CALLS)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def main():
    python, rust = [], []
    for _ in range(ROUNDS):
        python.append(in_python())
        rust.append(in_rust())
    median = lambda rounds, name: statistics.median(found[name] for found in rounds)
    loop = median(python, "nothing")
    print("| call | Rust | Python | more |")
    print("|---|---|---|---|")
    for name in rust[0]:
        fast, slow = median(rust, name), median(python, name) - loop
        print(f"| {name} | {fast:.2f} | {slow:.2f} | {slow - fast:.2f} |")


if __name__ == "__main__":
    main()
