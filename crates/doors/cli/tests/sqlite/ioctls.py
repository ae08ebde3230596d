"""The ioctls of F2FS for atomic writes, on the file of the argument."""
import errno, fcntl, os, struct, subprocess, sys, threading, time

START, COMMIT, ABORT, FEATURES = 0xF501, 0xF502, 0xF505, 0x8004F50C
BLOCK = 4096
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def features():
    return struct.unpack("I", fcntl.ioctl(fd, FEATURES, bytes(4)))[0]


def fails(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as e:
        assert e.errno == code, (call, arguments, e)
        return
    raise AssertionError((call, arguments))


def content(data):
    """What another process reads, and what this one does."""
    other = subprocess.run(["cat", path], stdout=subprocess.PIPE, check=True).stdout
    own = open(path, "rb").read()
    assert other == own == data, [bytes({b: 0 for b in x}) for x in (other, own, data)]
    assert os.stat(path).st_size == len(data), (os.stat(path).st_size, len(data))


def content_before_commit(data):
    """The server has the kernel drop what it shows too early, just after write(2) has returned."""
    for _ in range(600):
        try:
            return content(data)
        except AssertionError:
            time.sleep(0.1)
    content(data)


if sys.argv[2] == "without":
    assert features() == 0
    fails(errno.EOPNOTSUPP, fcntl.ioctl, fd, START)
    print("done")
    sys.exit()

assert features() & 4, features()
fails(errno.EINVAL, fcntl.ioctl, fd, COMMIT)
fails(errno.EINVAL, fcntl.ioctl, fd, ABORT)
old = b"o" * (3 * BLOCK)
os.pwrite(fd, old, 0)
os.fsync(fd)
content(old)

# Nothing is seen before the commit, by anybody; all of it afterwards.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"1" * BLOCK, BLOCK)
os.pwrite(fd, b"2" * BLOCK, 5 * BLOCK)
os.fsync(fd)
content_before_commit(old)
fcntl.ioctl(fd, COMMIT)
new = b"o" * BLOCK + b"1" * BLOCK + b"o" * BLOCK + bytes(2 * BLOCK) + b"2" * BLOCK
content(new)
fails(errno.EINVAL, fcntl.ioctl, fd, COMMIT)

# An abort leaves nothing, in the kernel's cache neither.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"3" * (8 * BLOCK), 0)
fcntl.ioctl(fd, ABORT)
content(new)

# Parts of pages, and a page that the kernel has not cached.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"4" * 10, 100)
os.pwrite(fd, b"5" * 10, 4 * BLOCK + 5)
fcntl.ioctl(fd, COMMIT)
new = new[:100] + b"4" * 10 + new[110:4 * BLOCK + 5] + b"5" * 10 + new[4 * BLOCK + 15:]
content(new)

# What another thread writes to the same page is lost at the commit, in the kernel's cache too.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"b" * BLOCK, BLOCK)
thread = threading.Thread(target=os.pwrite, args=(fd, b"a" * BLOCK, BLOCK))
thread.start()
thread.join()
fcntl.ioctl(fd, COMMIT)
new = new[:BLOCK] + b"b" * BLOCK + new[2 * BLOCK:]
content(new)

# What another thread writes is not staged.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"6" * BLOCK, 2 * BLOCK)
thread = threading.Thread(target=os.pwrite, args=(fd, b"7" * BLOCK, 0))
thread.start()
thread.join()
new = b"7" * BLOCK + new[BLOCK:]
content_before_commit(new)
fcntl.ioctl(fd, COMMIT)
new = new[:2 * BLOCK] + b"6" * BLOCK + new[3 * BLOCK:]
content(new)

# A process that is killed in the middle leaves nothing.
child = os.fork()
if child == 0:
    fcntl.ioctl(fd, START)
    os.pwrite(fd, b"8" * BLOCK, 0)
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
content_before_commit(new)
fails(errno.EINVAL, fcntl.ioctl, fd, COMMIT)

# More than the bound is refused, and what fits can still be committed.
fcntl.ioctl(fd, START)
os.pwrite(fd, b"9" * BLOCK, 0)


def too_much():
    for at in range(1, 400):
        os.pwrite(fd, b"9" * BLOCK, at * BLOCK)


fails(errno.EFBIG, too_much)
fcntl.ioctl(fd, ABORT)
content(new)
fails(errno.EISDIR, lambda: fcntl.ioctl(os.open(os.path.dirname(path), os.O_RDONLY), START))
print("done")
