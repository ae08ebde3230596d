"""Children of a process that has an image open: an error for them, no harm for the image."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import kedgefs


def in_child(work):
    """Runs `work` in a forked child. Returns its exit code and what it printed; the child ends as a
    program does, with its destructors."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with open(write, "w") as out:
            out.write(repr(work()))
        # Not os._exit: pytest's own exit is replaced, but objects are dropped.
        os._exit(0)
    os.close(write)
    with open(read) as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), text


def error_of(call):
    try:
        call()
    except OSError as e:
        return e.errno
    return None


def test_a_child_is_refused(image):
    fs = kedgefs.open(image)
    fs.write_bytes("f", b"parent")
    raw = fs.open("f", "r+b", 0)

    def work():
        return [
            error_of(call)
            for call in (
                lambda: fs.stat("f"),
                lambda: fs.mkdir("d"),
                fs.sync,
                lambda: fs.open("f", "w"),
                lambda: raw.write(b"child"),
                lambda: raw.read(1),
                raw.fsync,
                lambda: kedgefs.open(image),
                lambda: kedgefs.memory(),
                lambda: kedgefs.mkfs(f"{image}2", "64M"),
            )
        ] + [error_of(raw.close), error_of(fs.close), fs.closed]

    code, text = in_child(work)
    assert (code, text) == (0, repr([errno.EBADF] * 10 + [None, None, True]))
    assert fs.read_bytes("f") == b"parent" and raw.read() == b"parent"
    raw.close()
    fs.close()
    with kedgefs.open(image) as fs:
        assert fs.listdir() == ["f"]


def test_a_child_is_refused_after_the_close_too(image):
    kedgefs.memory().close()
    assert in_child(lambda: error_of(lambda: kedgefs.open(image))) == (0, repr(errno.EBADF))


def test_a_child_of_a_process_that_opened_nothing_opens_images(image):
    script = """
import os, sys, kedgefs
if os.fork() == 0:
    with kedgefs.open(sys.argv[1]) as fs:
        fs.write_bytes("f", b"child")
    sys.exit()
assert os.wait()[1] == 0
with kedgefs.open(sys.argv[1]) as fs:
    assert fs.read_bytes("f") == b"child"
"""
    subprocess.run([sys.executable, "-c", script, image], check=True, timeout=60)


# The child ends by itself, with atexit and destructors, while the parent's image is open.
ENDS = """
    import os, sys, kedgefs
    fs = kedgefs.open(sys.argv[1])
    f = fs.open("f", "wb", 0)
    f.write(b"parent")
    g = fs.open("gone", "wb", 0)
    fs.unlink("gone")
    if os.fork() == 0:
        {end}
    os.wait()
    f.write(b" goes on")
    fs.fsync(f)
    fs.close()
    print("parent done")
"""


@pytest.mark.parametrize("end", ["sys.exit()", "del f, g, fs; sys.exit()", "fs.close(); sys.exit()", "os.abort()"])
def test_the_end_of_a_child_leaves_the_image_alone(image, kedge, end):
    script = textwrap.dedent(ENDS.format(end=end))
    ended = subprocess.run([sys.executable, "-W", "error", "-c", script, image], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout == "parent done\n" and "Traceback" not in ended.stderr, ended
    subprocess.run([kedge, "fsck", "-f", image], check=True, capture_output=True)
    with kedgefs.open(image, readonly=True) as fs:
        assert fs.listdir() == ["f"] and fs.read_bytes("f") == b"parent goes on"


def test_a_child_does_not_wait_for_a_thread_that_opens_an_image(image):
    pytest.importorskip("fsspec")
    from kedgefs.fsspec import KedgeFileSystem, _Shared

    parent = KedgeFileSystem(image)
    holds, ends = threading.Event(), threading.Event()

    def hold():
        with _Shared.lock:
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()

    def work():
        signal.alarm(5)
        return [error_of(lambda: KedgeFileSystem(f"{image}2")), error_of(parent.close)]

    try:
        assert in_child(work) == (0, repr([errno.EBADF, None]))
    finally:
        ends.set()
        thread.join()
    parent.close()


def read_note(image):
    with kedgefs.open(image, readonly=True) as fs:
        return fs.read_bytes("f")


def test_processes_that_are_spawned_read_at_once(image):
    with kedgefs.open(image) as fs:
        fs.write_bytes("f", b"note")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(read_note, [image] * 4) == [b"note"] * 4


def test_a_killed_program_loses_nothing_that_was_synced(image, kedge):
    script = textwrap.dedent(
        """
        import sys, kedgefs
        fs = kedgefs.open(sys.argv[1])
        n = 0
        while True:
            with fs.open("new", "wb") as f:
                f.write(b"%d" % n * 3000)
                fs.fsync(f)
                fs.replace("new", f"note-{n % 7}")
                fs.fsync(f)
            print(n, flush=True)
            n += 1
        """
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", script, image], stdout=subprocess.PIPE, text=True)
        said = [int(child.stdout.readline()) for _ in range(100)]
        child.send_signal(signal.SIGKILL)
        said += [int(line) for line in child.stdout.read().split("\n")[:-1]]
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL and said == list(range(len(said)))
        subprocess.run([kedge, "fsck", image], check=True, capture_output=True)
        with kedgefs.open(image) as fs:
            for n in said[-7:]:
                found = fs.read_bytes(f"note-{n % 7}")
                # The program may have replaced it once more.
                number = int(found[: len(found) // 3000])
                assert number in (n, n + 7) and found == b"%d" % number * 3000


# The program is the first process of a PID namespace, and its child that of another one.
ALIKE = """
    import ctypes, errno, os, signal, sys, kedgefs
    assert os.getpid() == 1
    fs = kedgefs.open(sys.argv[1])
    fs.write_bytes("f", b"parent")
    fs.sync()
    assert ctypes.CDLL(None).unshare(0x20000000) == 0
    if os.fork() == 0:
        signal.alarm(30)
        assert os.getpid() == 1
        try:
            fs.write_bytes("child", b"child")
        except OSError as e:
            assert e.errno == errno.EBADF
            sys.exit()
        os._exit(1)
    status = os.wait()[1]
    fs.write_bytes("g", b"goes on")
    fs.close()
    print("child ended with", status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_a_child_with_the_number_of_its_parent_is_refused(image, kedge):
    command = ["unshare", "-pf", "--mount-proc", sys.executable, "-c", textwrap.dedent(ALIKE), image]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout == "child ended with 0\n", ended
    subprocess.run([kedge, "fsck", "-f", image], check=True, capture_output=True)
    with kedgefs.open(image, readonly=True) as fs:
        assert sorted(fs.listdir()) == ["f", "g"]
