"""Names, attributes, trees, and the life of a file system."""

import errno
import gc
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path, PurePosixPath

import pytest

import kedgefs

# ----- images -----


def test_mkfs_makes_an_image_of_the_size(tmp_path):
    path = tmp_path / "a.kedge"
    kedgefs.mkfs(path, "32M", label="data", log_size="1M", immutable=True)
    assert path.stat().st_size == 32 << 20
    with kedgefs.open(path) as fs:
        info = fs.info()
        assert "data" in str(info)
    kedgefs.mkfs(os.fsencode(tmp_path / "b.kedge"), 16 << 20)
    assert sorted(os.listdir(tmp_path)) == ["a.kedge", "b.kedge"]


def test_mkfs_refuses(tmp_path):
    path = tmp_path / "a.kedge"
    with pytest.raises(OSError, match="16 MiB|16M") as caught:
        kedgefs.mkfs(path, 4096)
    assert caught.value.errno == errno.EINVAL and caught.value.filename == path
    for size in ["many", "", "M", "1.5G", "-1", -1, 1 << 70]:
        with pytest.raises(ValueError, match="size"):
            kedgefs.mkfs(path, size)
    with pytest.raises(OSError):
        kedgefs.mkfs(path, "64M", label="x" * 65)
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        kedgefs.mkfs(path, "64M")
    assert path.read_text() == "mine"
    with pytest.raises(FileNotFoundError):
        kedgefs.mkfs(tmp_path / "none" / "a.kedge", "64M")


def test_open_creates_once(tmp_path):
    path = tmp_path / "a.kedge"
    for n in range(3):
        with kedgefs.open(path, create="64M") as fs:
            assert len(fs.listdir()) == n
            fs.mkdir(str(n))


def test_open_refuses_what_is_no_image(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        kedgefs.open(tmp_path / "none")
    assert caught.value.filename == tmp_path / "none"
    with pytest.raises(OSError) as caught:
        kedgefs.open(tmp_path)
    assert caught.value.errno == errno.EINVAL
    other = tmp_path / "other"
    other.write_bytes(os.urandom(1 << 20) * 20)
    with pytest.raises(OSError) as caught:
        kedgefs.open(other)
    assert caught.value.errno == errno.EUCLEAN
    with pytest.raises(ValueError, match="null"):
        kedgefs.open("a\0b")
    with pytest.raises(TypeError):
        kedgefs.open(7)


def test_options(image, tmp_path):
    with kedgefs.open(image, commit=1, cache_size="16M", noatime=True, discard=False, key_file=None) as fs:
        assert "'commit': " in str(fs.info()["options"]) or "commit" in str(fs.info())
        fs.set_options(commit=9)
        with pytest.raises(OSError) as caught:
            fs.set_options(nonsense=True)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="nonsense") as caught:
        kedgefs.open(image, nonsense=1)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="no mount here"):
        kedgefs.open(image, allow_other=True)
    with pytest.raises(ValueError, match="comma"):
        kedgefs.open(image, commit="1,ro")
    with pytest.raises(OSError, match="not encrypted"):
        kedgefs.open(image, key_file=tmp_path / "key")


def test_an_image_has_one_owner(image):
    with kedgefs.open(image) as fs:
        start = time.monotonic()
        with pytest.raises(OSError, match="open already") as caught:
            kedgefs.open(image)
        assert caught.value.errno == errno.EBUSY and time.monotonic() - start < 5
        with pytest.raises(OSError):
            kedgefs.open(image, readonly=True)
    with kedgefs.open(image, readonly=True) as one, kedgefs.open(image, readonly=True) as two:
        assert one.readonly and two.readonly and one.listdir() == two.listdir() == []
        assert one.statvfs().f_flag & os.ST_RDONLY
        with pytest.raises(OSError) as caught:
            one.mkdir("a")
        assert caught.value.errno == errno.EROFS
        with pytest.raises(OSError) as caught:
            one.open("a", "w")
        assert caught.value.errno == errno.EROFS
    assert not fs.readonly


def test_memory(fs):
    assert fs.statvfs().f_blocks * fs.statvfs().f_bsize == 64 << 20
    assert not fs.readonly and not fs.closed
    with kedgefs.memory(16 << 20) as small:
        assert small.statvfs().f_blocks == 4096


def test_the_command_reads_what_was_written(image, kedge):
    with kedgefs.open(image) as fs:
        fs.write_bytes("note", b"from Python")
        fs.setxattr("note", "user.a", b"b")
    run = lambda *words: subprocess.run([kedge, *words], check=True, capture_output=True, text=True).stdout
    assert run("cat", f"{image}:/note") == "from Python"
    assert "clean" in run("info", image)
    run("fsck", "-f", image)
    assert kedgefs.__version__ in run("--version")


# ----- names -----


def test_directories(fs):
    fs.mkdir("a", 0o700)
    assert stat.S_IMODE(fs.stat("a").st_mode) == 0o700
    fs.makedirs("a/b/c/")
    fs.makedirs("/a/b/c", exist_ok=True)
    # As with os.makedirs the mode is that of the last one.
    fs.makedirs("n/o", mode=0o750)
    assert [stat.S_IMODE(fs.stat(path).st_mode) for path in ("n", "n/o")] == [0o777, 0o750]
    fs.rmtree("n")
    with pytest.raises(FileExistsError):
        fs.makedirs("a/b/c")
    fs.write_bytes("a/file", b"")
    with pytest.raises(FileExistsError):
        fs.makedirs("a/file", exist_ok=True)
    with pytest.raises(NotADirectoryError):
        fs.makedirs("a/file/b")
    with pytest.raises(OSError) as caught:
        fs.rmdir("a")
    assert caught.value.errno == errno.ENOTEMPTY
    fs.rmdir("a/b/c")
    fs.rmtree("a")
    assert fs.listdir() == [] == fs.listdir("/")
    with pytest.raises(FileNotFoundError):
        fs.rmtree("a")
    with pytest.raises(OSError):
        fs.mkdir("m", 0o40755)


def test_listings(fs):
    fs.makedirs("d/sub")
    fs.write_bytes("d/file", b"12345")
    fs.symlink("sub", "d/link")
    fs.symlink("none", "d/broken")
    assert sorted(fs.listdir("d")) == ["broken", "file", "link", "sub"]
    assert sorted(fs.listdir(b"d")) == [b"broken", b"file", b"link", b"sub"]
    assert sorted(fs.listdir(PurePosixPath("d"))) == ["broken", "file", "link", "sub"]
    with fs.scandir("d") as entries:
        found = {entry.name: entry for entry in entries}
    seen = {name: (e.is_dir(), e.is_file(), e.is_symlink(), e.is_dir(follow_symlinks=False)) for name, e in found.items()}
    assert seen == {
        "sub": (True, False, False, True),
        "file": (False, True, False, False),
        "link": (True, False, True, False),
        "broken": (False, False, True, False),
    }
    entry = found["file"]
    assert (entry.path, os.fspath(entry), entry.stat().st_size) == ("d/file", "d/file", 5)
    assert entry.inode() == fs.stat("d/file").st_ino and "file" in repr(entry)
    assert found["link"].stat(follow_symlinks=False).st_size == 3
    scan = fs.scandir(b"d")
    assert isinstance(next(scan).name, bytes) and iter(scan) is scan
    scan.close()
    assert list(scan) == []
    with pytest.raises(NotADirectoryError) as caught:
        fs.listdir("d/file")
    assert caught.value.filename == "d/file"
    with pytest.raises(FileNotFoundError):
        fs.scandir("none")


def test_walk(fs, tmp_path):
    for made in ["a/b/c", "a/d", "e"]:
        fs.makedirs(made)
        os.makedirs(tmp_path / made)
    for made in ["a/1", "a/b/2", "e/3"]:
        fs.write_bytes(made, b"")
        (tmp_path / made).write_bytes(b"")
    fs.symlink("../e", "a/link")
    os.symlink("../e", tmp_path / "a/link")
    # Links that stat(2) cannot follow, with ENOENT, ELOOP and ENOTDIR.
    for target, link in [("none", "a/dangling"), ("itself", "a/itself"), ("1/x", "a/through")]:
        fs.symlink(target, link)
        os.symlink(target, tmp_path / link)
    for ways in [{}, {"topdown": False}, {"followlinks": True}]:
        host = {os.path.relpath(top, tmp_path): (sorted(d), sorted(f)) for top, d, f in os.walk(tmp_path, **ways)}
        ours = {os.path.relpath(top, "/"): (sorted(d), sorted(f)) for top, d, f in fs.walk("/", **ways)}
        assert ours == host
    order = [top for top, _, _ in fs.walk("a", topdown=False)]
    assert order[-1] == "a" and order.index("a/b/c") < order.index("a/b")
    assert list(fs.walk("none")) == []
    errors = []
    assert list(fs.walk("none", onerror=errors.append)) == [] and errors[0].errno == errno.ENOENT
    for top, dirs, _ in fs.walk():
        dirs[:] = [name for name in dirs if name == "a"] if top == "/" else []
    assert top == "/a"


def test_tests_of_a_path(fs):
    fs.mkdir("d")
    fs.write_bytes("f", b"")
    fs.symlink("d", "l")
    fs.symlink("none", "broken")
    fs.symlink("loop", "loop")
    rows = {"d": "de", "f": "fe", "l": "del", "broken": "l", "loop": "l", "none": "", "f/x": "", "x" * 300: ""}
    for path, want in rows.items():
        got = (("d" if fs.isdir(path) else "") + ("f" if fs.isfile(path) else "")
               + ("e" if fs.exists(path) else "") + ("l" if fs.islink(path) else ""))
        assert got == want, path
        assert fs.lexists(path) == bool(want)


def test_names_move_and_go(fs):
    fs.write_bytes("a", b"a")
    fs.write_bytes("b", b"b")
    fs.rename("a", "c")
    fs.replace("c", "b")
    assert fs.listdir() == ["b"] and fs.read_bytes("b") == b"a"
    fs.write_bytes("a", b"x")
    with pytest.raises(FileExistsError) as caught:
        fs.rename("a", "b", mode="noreplace")
    assert (caught.value.filename, caught.value.filename2) == ("a", "b")
    fs.rename("a", "b", mode="exchange")
    assert (fs.read_bytes("a"), fs.read_bytes("b")) == (b"a", b"x")
    with pytest.raises(OSError, match="rename mode"):
        fs.rename("a", "b", mode="else")
    with pytest.raises(FileNotFoundError):
        fs.rename("none", "x")
    fs.link("a", "hard")
    assert fs.stat("a").st_nlink == 2 and fs.stat("hard").st_ino == fs.stat("a").st_ino
    fs.unlink("hard")
    fs.remove("a")
    fs.mkdir("d")
    for gone in (fs.unlink, fs.remove):
        with pytest.raises(IsADirectoryError):
            gone("d")
    with pytest.raises(OSError) as caught:
        fs.rename("d", "d/e")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(PermissionError):
        fs.link("d", "hard")


def test_symbolic_links(fs):
    fs.symlink("target/é", "link")
    assert fs.readlink("link") == "target/é" and fs.readlink(b"link") == "target/é".encode()
    assert stat.S_ISLNK(fs.lstat("link").st_mode) and fs.stat("link", follow_symlinks=False).st_ino == fs.lstat("link").st_ino
    with pytest.raises(FileNotFoundError):
        fs.stat("link")
    with pytest.raises(FileExistsError):
        fs.symlink("x", "link")
    fs.write_bytes("f", b"")
    with pytest.raises(OSError) as caught:
        fs.readlink("f")
    assert caught.value.errno == errno.EINVAL


def test_names_that_are_not_utf8(fs):
    name = b"\xff\xfe"
    fs.write_bytes(name, b"x")
    assert fs.listdir() == [os.fsdecode(name)] and fs.listdir(b"/") == [name]
    assert fs.read_bytes(os.fsdecode(name)) == b"x"


def test_paths_that_are_none(fs):
    class Odd:
        def __fspath__(self):
            return 7

    for bad in (7, None, Odd(), ["a"]):
        with pytest.raises(TypeError):
            fs.stat(bad)
    with pytest.raises(ValueError, match="null"):
        fs.mkdir("a\0b")
    with pytest.raises(FileNotFoundError):
        fs.stat("")
    with pytest.raises(OSError) as caught:
        fs.mkdir("x" * 256)
    assert caught.value.errno == errno.ENAMETOOLONG


# ----- attributes -----


def test_stat_has_the_fields_of_os(fs):
    fs.write_bytes("f", b"x" * 5000)
    fs.fsync("f")
    found = fs.stat("f")
    assert type(found) is os.stat_result
    assert (found.st_size, found.st_nlink, found.st_blksize, found.st_rdev) == (5000, 1, 4096, 0)
    assert found.st_blocks * 512 >= 5000 and abs(found.st_mtime - time.time()) < 60
    assert found.st_mtime_ns // 10**9 == found[stat.ST_MTIME] == int(found.st_mtime)
    assert type(fs.statvfs()) is os.statvfs_result


def test_attributes_change(fs):
    fs.write_bytes("f", b"x" * 100)
    fs.symlink("f", "l")
    fs.chmod("l", 0o4711)
    assert stat.S_IMODE(fs.stat("f").st_mode) == 0o4711
    fs.chown("l", 7, -1)
    fs.chown("l", -1, 8, follow_symlinks=False)
    assert (fs.stat("f").st_uid, fs.stat("f").st_gid, fs.lstat("l").st_gid) == (7, os.getegid(), 8)
    fs.truncate("f", 10)
    assert fs.stat("l").st_size == 10
    fs.utime("f", (1.5, -2.25))
    assert (fs.stat("f").st_atime_ns, fs.stat("f").st_mtime_ns) == (1_500_000_000, -2_250_000_000)
    fs.utime("f", (3, 4))
    assert (fs.stat("f").st_atime, fs.stat("f").st_mtime) == (3, 4)
    fs.utime("l", ns=(5, 6), follow_symlinks=False)
    assert (fs.lstat("l").st_mtime_ns, fs.stat("f").st_mtime) == (6, 4)
    fs.utime("f")
    assert abs(fs.stat("f").st_mtime - time.time()) < 60
    with pytest.raises(ValueError, match="both"):
        fs.utime("f", (1, 2), ns=(1, 2))
    for bad in [lambda: fs.chmod("f", 0o100644), lambda: fs.chown("f", -2, 0), lambda: fs.chown("f", 0, 1 << 40),
                lambda: fs.truncate("f", -1), lambda: fs.utime("f", ns=(1 << 100, 0))]:
        with pytest.raises(OSError) as caught:
            bad()
        assert caught.value.errno == errno.EINVAL and caught.value.filename == "f"


def test_extended_attributes(fs):
    fs.write_bytes("f", b"")
    fs.symlink("f", "l")
    fs.setxattr("l", "user.a", b"1")
    fs.setxattr("f", b"user.b", bytearray(b"22"), os.XATTR_CREATE)
    assert sorted(fs.listxattr("f")) == ["user.a", "user.b"] and fs.listxattr() == []
    assert fs.getxattr("l", "user.b") == b"22"
    assert fs.listxattr("l", follow_symlinks=False) == []
    with pytest.raises(FileExistsError):
        fs.setxattr("f", "user.a", b"", os.XATTR_CREATE)
    for bad in [lambda: fs.getxattr("f", "user.none"), lambda: fs.setxattr("f", "user.none", b"", os.XATTR_REPLACE),
                lambda: fs.removexattr("f", "user.none"), lambda: fs.getxattr("l", "user.a", follow_symlinks=False)]:
        with pytest.raises(OSError) as caught:
            bad()
        assert caught.value.errno == errno.ENODATA
    with pytest.raises(OSError) as caught:
        fs.setxattr("f", "user.a", b"", 9)
    assert caught.value.errno == errno.EINVAL
    fs.removexattr("f", "user.a")
    assert fs.listxattr("f") == ["user.b"]
    fs.setxattr("l", "user.l", b"3", follow_symlinks=False)
    assert fs.listxattr("l", follow_symlinks=False) == ["user.l"] and fs.listxattr("f") == ["user.b"]
    assert fs.getxattr("l", "user.l", follow_symlinks=False) == b"3"
    fs.removexattr("l", "user.l", follow_symlinks=False)
    assert fs.listxattr("l", follow_symlinks=False) == []


# ----- forks, freeze -----


def test_forks_and_snapshots(image):
    with kedgefs.open(image) as fs:
        fs.write_bytes("f", b"one")
        fs.snapshot("/", "monday")
        fs.write_bytes("f", b"two")
        fs.fork("/", "try")
        fs.write_bytes("try/f", b"three")
        assert [fs.read_bytes(path) for path in ("f", "monday/f", "try/f")] == [b"two", b"one", b"three"]
        trees = {tree.path: tree for tree in fs.trees()}
        assert set(trees) == {"/", "/monday", "/try"} and trees["/monday"].readonly and not trees["/try"].readonly
        assert trees["/try"].inodes == 2 and abs(trees["/try"].created - time.time()) < 60
        with pytest.raises(OSError) as caught:
            fs.write_bytes("monday/f", b"")
        assert caught.value.errno == errno.EROFS
        fs.fork("/", "tuesday", readonly=True)
        with pytest.raises(OSError) as caught:
            fs.write_bytes("tuesday/f", b"")
        assert caught.value.errno == errno.EROFS
        fs.delete_tree("tuesday")
        with pytest.raises(FileExistsError):
            fs.fork("/", "try")
        with pytest.raises(OSError) as caught:
            fs.fork("f", "x")
        assert caught.value.errno == errno.EINVAL and caught.value.filename2 == "x"
        with pytest.raises(OSError, match="end with a name"):
            fs.fork("/", "..")
        with pytest.raises(OSError) as caught:
            fs.link("f", "try/g")
        assert caught.value.errno == errno.EXDEV
        fs.roll_back("monday", "try")
        assert fs.read_bytes("try/f") == b"one"
        fs.fork("try", "again")
        fs.write_bytes("again/f", b"four")
        fs.commit("again", "try")
        assert fs.read_bytes("try/f") == b"four" and not fs.exists("again")
        fs.fork("try", "again")
        fs.write_bytes("try/f", b"five")
        with pytest.raises(OSError) as caught:
            fs.commit("again", "try")
        assert caught.value.errno == errno.EBUSY
        fs.commit("again", "try", force=True)
        fs.mkdir("d")
        fs.rename_tree("try", "d/kept")
        fs.delete_tree("monday")
        assert sorted(fs.listdir()) == ["d", "f"] and fs.read_bytes("d/kept/f") == b"four"
        with pytest.raises(FileNotFoundError):
            fs.delete_tree("monday")
    with kedgefs.open(image) as fs:
        assert [tree.path for tree in fs.trees()] == ["/", "/d/kept"]


def test_a_frozen_image_can_be_copied(image, tmp_path, kedge):
    with kedgefs.open(image) as fs:
        fs.write_bytes("f", b"there")
        waits = threading.Thread(target=fs.mkdir, args=("later",))
        with fs.frozen():
            waits.start()
            copy = tmp_path / "copy"
            copy.write_bytes(image.read_bytes())
            # The thread waits without the interpreter's lock.
            assert fs.read_bytes("f") == b"there" and not fs.exists("later")
            with pytest.raises(OSError) as caught:
                fs.freeze()
            assert caught.value.errno == errno.EBUSY
        waits.join()
        assert fs.exists("later")
        with pytest.raises(OSError):
            fs.thaw()
        fs.freeze()
        fs.thaw()
        fs.rmdir("later")
    assert "clean" in subprocess.run([kedge, "info", copy], check=True, capture_output=True, text=True).stdout
    with kedgefs.open(copy, readonly=True) as fs:
        assert fs.listdir() == ["f"]


def test_the_first_tree_is_replaced(image):
    with kedgefs.open(image) as fs:
        fs.write_bytes("f", b"one")
        fs.snapshot("/", "monday")
        fs.write_bytes("f", b"two")
        with fs.open("f", "rb", 0) as old:
            fs.roll_back("monday", "/")
            with pytest.raises(OSError) as caught:
                old.read()
            assert caught.value.errno == errno.ESTALE
        assert fs.read_bytes("f") == b"one" and fs.read_bytes("monday/f") == b"one"
        fs.fork("/", "try")
        fs.write_bytes("try/f", b"three")
        fs.commit("try", "/")
        assert fs.read_bytes("f") == b"three" and sorted(fs.listdir()) == ["f", "monday"]
        with pytest.raises(OSError) as caught:
            fs.roll_back("/", "/")
        assert caught.value.errno == errno.EINVAL
    with kedgefs.open(image) as fs:
        assert fs.read_bytes("f") == b"three"


def test_clones(fs):
    data = bytes(range(256)) * 100
    fs.write_bytes("a", data)
    fs.clone_file("a", "b")
    assert fs.read_bytes("b") == data
    fs.clone_range("a", "b", offset=4096, dst_offset=0, length=8192)
    assert fs.read_bytes("b") == data[4096:12288] + data[8192:]
    assert fs.read_bytes("a") == data
    for wrong in ({"offset": 1}, {"length": -4096}, {"dst_offset": -1}):
        with pytest.raises(OSError) as caught:
            fs.clone_range("a", "b", **wrong)
        assert caught.value.errno == errno.EINVAL and caught.value.filename == "a"
    with pytest.raises(FileNotFoundError):
        fs.clone_range("a", "missing")
    with pytest.raises(FileNotFoundError):
        fs.clone_file("missing", "b")
    with pytest.raises(IsADirectoryError):
        fs.clone_file("/", "b")


def test_atomic_writes(fs):
    fs.write_bytes("f", b"0" * 10000)
    fs.write_atomic("f", [(0, b"one"), (9000, bytearray(b"two")), (12000, memoryview(b"three"))])
    assert fs.read_bytes("f") == b"one" + b"0" * 8997 + b"two" + b"0" * 997 + bytes(2000) + b"three"
    with pytest.raises(OSError) as caught:
        fs.write_atomic("f", [(0, b"x"), (0, bytes(2 << 20))])
    assert caught.value.errno == errno.EFBIG and fs.read_bytes("f").startswith(b"one")
    with pytest.raises(OSError) as caught:
        fs.write_atomic("f", [(-1, b"x")])
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(TypeError):
        fs.write_atomic("f", [(0, "text")])


def test_limits(fs):
    assert fs.limit_of("/") is None
    fs.makedirs("d/e")
    fs.set_limit("d", size="64K", files=4)
    fs.write_bytes("d/e/f", bytes(8192))
    assert fs.limit_of("d/e/f") == kedgefs.Limit("/d", 65536, 4, 8192, 3)
    with pytest.raises(OSError) as caught:
        fs.write_bytes("d/large", bytes(100_000))
    assert caught.value.errno == errno.EDQUOT
    fs.set_limit("d", size=None)
    assert fs.limit_of("d").size is None and fs.limit_of("d").files == 4
    fs.set_limit("d", files=None)
    assert fs.limit_of("d/e") is None
    with pytest.raises(NotADirectoryError):
        fs.set_limit("d/e/f", files=3)
    with pytest.raises(OSError) as caught:
        fs.set_limit("d", size=1)
    assert caught.value.errno == errno.EINVAL


def test_counters_and_sync(fs):
    fs.write_bytes("f", b"x")
    fs.sync()
    assert isinstance(fs.stats(), dict) and fs.stats() and "uuid" in fs.info()


# ----- the end -----


def test_a_closed_file_system_refuses_everything(image):
    fs = kedgefs.open(image)
    raw, text = fs.open("f", "w+b", 0), fs.open("t", "w")
    text.write("kept")
    assert repr(fs) == "<kedgefs.FileSystem open>"
    fs.close()
    fs.close()
    assert fs.closed and repr(fs) == "<kedgefs.FileSystem closed>"
    calls = {
        "chmod": ("f", 0), "chown": ("f", 0, 0), "clone_file": ("f", "g"), "clone_range": ("f", "g"), "commit": ("a", "b"), "delete_tree": ("a",), "exists": ("f",),
        "fdatasync": ("f",), "fork": ("/", "x"), "freeze": (), "fsync": ("f",), "getxattr": ("f", "user.a"), "info": (),
        "isdir": ("f",), "isfile": ("f",), "islink": ("f",), "lexists": ("f",), "limit_of": ("f",), "link": ("f", "g"),
        "listdir": (), "set_limit": ("d",), "write_atomic": ("f", []),
        "listxattr": (), "lstat": ("f",), "makedirs": ("a",), "mkdir": ("a",), "open": ("f",), "read_bytes": ("f",),
        "readlink": ("f",), "remove": ("f",), "removexattr": ("f", "user.a"), "rename": ("f", "g"),
        "rename_tree": ("f", "g"), "replace": ("f", "g"), "rmdir": ("f",), "rmtree": ("f",), "roll_back": ("a", "b"),
        "scandir": (), "set_options": (), "setxattr": ("f", "user.a", b""), "snapshot": ("/", "x"), "stat": ("f",),
        "stats": (), "statvfs": (), "symlink": ("a", "b"), "sync": (), "thaw": (), "trees": (), "truncate": ("f", 0),
        "unlink": ("f",), "utime": ("f",), "write_bytes": ("f", b""),
    }
    public = {name for name in dir(fs) if not name.startswith("_")}
    assert public - set(calls) == {"close", "closed", "readonly", "walk", "frozen"}, "each has its row"
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match="closed"):
            getattr(fs, name)(*arguments)
    with pytest.raises(ValueError):
        list(fs.walk())
    with pytest.raises(ValueError):
        with fs.frozen():
            pass
    assert raw.closed and text.closed
    with kedgefs.open(image) as fs:
        assert fs.read_bytes("t") == b"kept"


def test_a_file_system_that_is_forgotten_is_closed_with_a_warning(image):
    fs = kedgefs.open(image)
    fs.write_bytes("f", b"kept")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del fs
        gc.collect()
    with kedgefs.open(image) as fs:
        assert fs.read_bytes("f") == b"kept"


def test_the_end_of_a_program_closes_its_images(image):
    script = "import kedgefs, sys; fs = kedgefs.open(sys.argv[1]); fs.open('f', 'w').write('kept')"
    ended = subprocess.run([sys.executable, "-c", script, image], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    with kedgefs.open(image, readonly=True) as fs:
        assert fs.read_bytes("f") == b"kept"


def test_warnings_that_are_errors_leave_no_image_open(image, tmp_path):
    other = tmp_path / "other.kedge"
    kedgefs.mkfs(other, "64M")
    script = """
import kedgefs, sys
kept = [kedgefs.open(image, commit=300) for image in sys.argv[1:]]
for fs in kept:
    fs.open("f", "w").write("kept")
"""
    arguments = [sys.executable, "-W", "error::ResourceWarning", "-c", script, image, other]
    ended = subprocess.run(arguments, capture_output=True, text=True)
    assert "ResourceWarning: unclosed file system" in ended.stderr, ended
    for path in [image, other]:
        with kedgefs.open(path, readonly=True) as fs:
            assert fs.read_bytes("f") == b"kept"


def test_objects_stay_in_their_process(fs):
    with pytest.raises(TypeError, match="process"):
        pickle.dumps(fs)
    with pytest.raises(TypeError):
        kedgefs.FileSystem()


def test_a_panic_is_an_error_and_ends_the_file_system(capfd):
    fs = kedgefs.memory()
    if not hasattr(fs, "_panic"):
        fs.close()
        pytest.skip("a release build has no panic to offer")
    with pytest.raises(OSError, match="a panic in the library: asked for by a test") as caught:
        fs._panic()
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError):
        fs.mkdir("a")
    with pytest.raises(OSError):
        fs.close()
    assert fs.closed and "panicked" in capfd.readouterr().err


def test_threads_share_a_file_system(fs):
    """Calls of many threads, with closes in between."""
    errors = []

    def work(number):
        try:
            for n in range(50):
                name = f"{number}-{n % 5}"
                with fs.open(name, "wb") as f:
                    f.write(b"x" * 5000)
                    if n % 10 == 0:
                        fs.fsync(f)
                assert fs.stat(name).st_size == 5000 and name in fs.listdir()
                fs.replace(name, f"kept-{number}")
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and sorted(fs.listdir()) == [f"kept-{n}" for n in range(8)]


def test_a_close_in_the_middle_of_calls(tmp_path):
    for n in range(5):
        fs = kedgefs.open(tmp_path / str(n), create="32M")
        seen, started = [], threading.Barrier(5)

        def work(number):
            started.wait()
            try:
                for i in range(100_000):
                    with fs.open(f"{number}", "ab", 0) as f:
                        f.write(b"x")
                        f.fdatasync()
            except (ValueError, OSError) as e:
                seen.append(e)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        time.sleep(0.05)
        fs.close()
        for thread in threads:
            thread.join()
        assert len(seen) == 4 and all(type(e) is ValueError and "closed" in str(e) for e in seen), seen
        kedgefs.open(tmp_path / str(n)).close()


def test_a_close_ends_a_freeze(image):
    fs = kedgefs.open(image)
    fs.freeze()
    waits = threading.Thread(target=fs.mkdir, args=("later",))
    waits.start()
    time.sleep(0.1)
    fs.close()
    waits.join(30)
    assert not waits.is_alive()
    with kedgefs.open(image) as fs:
        assert fs.listdir() == ["later"]


def test_other_threads_run_while_one_waits(image):
    """The interpreter's lock is free during a call: a counter goes on beside fsyncs."""
    with kedgefs.open(image) as fs:
        stop, counted = threading.Event(), [0]

        def count():
            while not stop.is_set():
                counted[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        with fs.open("f", "wb", 0) as f:
            before = counted[0]
            for _ in range(50):
                f.write(b"x" * 100_000)
                f.fsync()
            during = counted[0] - before
        stop.set()
        thread.join()
        assert during > 1000


def test_the_stubs_name_what_there_is():
    """Each method of the Rust classes is in the stubs, and each documented name exists."""
    from kedgefs import _kedgefs

    text = (Path(kedgefs.__file__).parent / "_kedgefs.pyi").read_text()
    for of in (_kedgefs.Volume, _kedgefs.Handle):
        for name in vars(of):
            if not name.startswith("__") and name != "_panic":
                assert f"def {name}(" in text, name
    for name in kedgefs.__all__:
        assert hasattr(kedgefs, name)
