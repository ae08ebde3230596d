"""Open files, beside files of the host where these have a counterpart."""

import array
import errno
import gc
import io
import os
import stat
import threading
import warnings

import pytest

import kedgefs

MODES = ["r", "rb", "r+", "rb+", "r+b", "w", "wb", "w+", "wb+", "a", "ab", "a+", "ab+", "x", "xb", "x+", "xb+"]


def steps(open_, path, mode):
    """What a file of a mode does, with its errors."""
    seen = []

    def note(name, call):
        try:
            got = call()
            seen.append((name, bytes(got) if isinstance(got, bytearray) else got))
        except (OSError, ValueError) as e:
            kind = type(e).__mro__[0].__name__
            seen.append((name, kind, getattr(e, "errno", None)))

    try:
        file = open_(path, mode)
    except OSError as e:
        return [("open", type(e).__name__, e.errno)]
    text = "b" not in mode
    data = "line\n" if text else b"line\n"
    note("readable", file.readable)
    note("writable", file.writable)
    note("seekable", file.seekable)
    note("tell", file.tell)
    note("read", lambda: file.read(3))
    note("write", lambda: file.write(data))
    note("flush", file.flush)
    note("seek", lambda: file.seek(0))
    note("readline", file.readline)
    note("rest", file.read)
    note("at the end", file.tell)
    note("seek to the end", lambda: file.seek(0, 2))
    note("append", lambda: file.write(data))
    note("truncate", lambda: file.truncate(7))
    file.close()
    note("closed", lambda: file.closed)
    note("after", lambda: file.read(1))
    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_mode_does_what_it_does_on_the_host(fs, tmp_path, mode, is_there):
    host = tmp_path / "file"
    if is_there:
        host.write_bytes(b"first\nsecond\n")
        fs.write_bytes("file", b"first\nsecond\n")
    want = steps(open, host, mode)
    assert steps(fs.open, "file", mode) == want
    assert fs.exists("file") == host.exists()
    if host.exists():
        assert fs.read_bytes("file") == host.read_bytes()


@pytest.mark.parametrize("mode", ["", "rw", "q", "rr", "rbt", "b", "+", "r++", "ba+w"])
def test_a_mode_that_makes_no_sense_is_refused(fs, mode):
    with pytest.raises(ValueError):
        fs.open("file", mode)
    assert not fs.exists("file")


def test_arguments_of_open_are_checked(fs):
    with pytest.raises(TypeError):
        fs.open("file", 7)
    with pytest.raises(ValueError, match="encoding"):
        fs.open("file", "wb", encoding="utf-8")
    with pytest.raises(ValueError, match="unbuffered text"):
        fs.open("file", "w", 0)
    with pytest.raises(LookupError):
        fs.open("file", "w", encoding="no such thing")
    with pytest.raises(OSError, match="permissions") as caught:
        fs.open("file2", "wb", permissions=0o100644)
    assert caught.value.errno == errno.EINVAL
    assert not fs.exists("file2")


def test_layers_are_those_of_io(fs):
    assert type(fs.open("a", "wb", 0)) is kedgefs.RawFile
    assert type(fs.open("a", "wb")) is io.BufferedWriter
    assert type(fs.open("a", "rb")) is io.BufferedReader
    assert type(fs.open("a", "r+b")) is io.BufferedRandom
    text = fs.open("a", "w", 1, encoding="utf-16", newline="\r\n")
    assert (type(text), text.mode, text.name, text.encoding) == (io.TextIOWrapper, "w", "a", "utf-16")
    text.write("ä\n")  # line buffered
    assert fs.read_bytes("a") == "ä\r\n".encode("utf-16")
    fs.write_bytes("latin", b"\xe4")
    assert fs.open("latin", encoding="utf-8", errors="replace").read() == "\ufffd"
    raw = fs.open("a", "rb", 0)
    assert isinstance(raw, io.RawIOBase)
    assert repr(raw) == "<kedgefs.RawFile name='a' mode='rb'>"
    raw.close()
    assert repr(raw) == "<kedgefs.RawFile closed>"


def test_raw_reads_and_writes(fs):
    with fs.open("file", "w+b", 0) as f:
        assert f.write(b"0123456789") == 10
        assert f.write(memoryview(b"ab")) == 2
        assert f.write(bytearray(b"cd")) == 2
        assert f.write(array.array("i", [1])) == 4
        assert f.write(b"") == 0 and f.write(memoryview(b"")) == 0
        assert f.tell() == 18
        assert f.seek(2) == 2 and f.seek(1, os.SEEK_CUR) == 3
        assert f.read(4) == b"3456" and f.read(0) == b""
        assert f.seek(-4, os.SEEK_END) == 14
        assert f.readall() == array.array("i", [1]).tobytes() and f.read() == b"" and f.read(None) == b""
        assert f.pread(3, 1) == b"123" and f.pread(100, 17) == b"\0" and f.pread(5, 1000) == b""
        assert f.pwrite(b"ZZ", 0) == 2 and f.tell() == 18
        buf = bytearray(4)
        f.seek(0)
        assert f.readinto(buf) == 4 and buf == b"ZZ23"
        ints = array.array("i", [0, 0])
        assert f.readinto(ints) == 8
        assert ints.tobytes() == b"456789ab"
        assert f.readinto(bytearray()) == 0
        assert f.truncate(5) == 5 and f.stat().st_size == 5
        f.seek(3)
        assert f.truncate() == 3 and fs.read_bytes("file") == b"ZZ2"
        f.fsync()
        f.fdatasync()


def test_large_buffers_take_many_pieces(fs):
    data = os.urandom((3 << 20) + 17)
    with fs.open("file", "w+b", 0) as f:
        assert f.write(bytearray(data)) == len(data)
        f.seek(0)
        back = bytearray(len(data) + 100)
        assert f.readinto(back) == len(data) and back[: len(data)] == data
        assert f.pwrite(memoryview(data)[: 2 << 20], 1 << 20) == 2 << 20
        assert f.pread(2 << 20, 1 << 20) == data[: 2 << 20]
        assert f.pread(1 << 40, 5) == fs.read_bytes("file")[5:]
    with fs.open("file", "ab", 0) as f:
        assert f.write(bytearray(data)) == len(data)
    assert fs.stat("file").st_size == 2 * len(data)


def test_holes_are_found(fs):
    with fs.open("file", "w+b", 0) as f:
        f.pwrite(b"x" * 4096, 1 << 20)
        f.truncate(2 << 20)
        f.fsync()
        assert f.seek(0, os.SEEK_DATA) == 1 << 20
        assert f.seek(1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
        with pytest.raises(OSError) as caught:
            f.seek((1 << 20) + 8192, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO


def test_bad_arguments_of_raw_files(fs):
    with fs.open("file", "w+b", 0) as f:
        for bad in [lambda: f.seek(-1), lambda: f.seek(0, 9), lambda: f.pread(1, -1),
                    lambda: f.pwrite(b"x", -1), lambda: f.truncate(-1), lambda: f.seek(1 << 62, 1) and f.seek(1 << 62, 1)]:
            with pytest.raises(OSError) as caught:
                bad()
            assert caught.value.errno == errno.EINVAL
        for bad in [lambda: f.write("text"), lambda: f.readinto(b"constant"), lambda: f.pread("1", 0), lambda: f.write(None)]:
            with pytest.raises(TypeError):
                bad()
        with pytest.raises(OverflowError):
            f.seek(1 << 70)
        with pytest.raises(OSError) as caught:
            f.pwrite(b"x", (1 << 63) - 1)
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(io.UnsupportedOperation):
            f.fileno()
        assert not f.isatty()
    with fs.open("file", "rb", 0) as f:
        for bad in [lambda: f.write(b"x"), lambda: f.pwrite(b"x", 0), lambda: f.truncate(0)]:
            with pytest.raises(io.UnsupportedOperation, match="writing"):
                bad()
    with fs.open("file", "wb", 0) as f:
        for bad in [lambda: f.read(1), lambda: f.readall(), lambda: f.pread(1, 0), lambda: f.readinto(bytearray(1))]:
            with pytest.raises(io.UnsupportedOperation, match="reading"):
                bad()


def test_a_closed_file_refuses_everything(fs):
    raw = fs.open("file", "w+b", 0)
    raw.close()
    raw.close()
    for call in [raw.read, raw.readall, raw.tell, raw.truncate, raw.fsync, raw.fdatasync, raw.stat, raw.readable,
                 raw.writable, raw.seekable, raw.flush, lambda: raw.write(b"x"), lambda: raw.seek(0),
                 lambda: raw.pread(1, 0), lambda: raw.pwrite(b"", 0), lambda: raw.readinto(bytearray(1)), lambda: fs.fsync(raw)]:
        with pytest.raises(ValueError, match="closed"):
            call()


def test_appends_of_threads_do_not_overwrite_one_another(fs):
    lines, threads = 200, 4

    def append(number):
        with fs.open("log", "ab", 0) as f:
            for n in range(lines):
                # Both kinds of buffers.
                line = f"{number} {n:05}\n".encode()
                f.write(line if n % 2 else bytearray(line))

    all_ = [threading.Thread(target=append, args=(number,)) for number in range(threads)]
    for thread in all_:
        thread.start()
    for thread in all_:
        thread.join()
    found = fs.read_bytes("log").decode().splitlines()
    assert sorted(found) == sorted(f"{t} {n:05}" for t in range(threads) for n in range(lines))


def test_a_file_lives_until_it_is_closed(fs):
    with fs.open("file", "w+b") as f:
        f.write(b"data")
        f.flush()
        fs.unlink("file")
        assert fs.listdir() == []
        f.seek(0)
        assert f.read() == b"data"
        assert f.raw.stat().st_nlink == 0


def test_fsync_flushes_each_layer(fs):
    text = fs.open("file", "w")
    text.write("text")
    assert fs.read_bytes("file") == b""
    fs.fsync(text)
    assert fs.read_bytes("file") == b"text"
    text.write("more")
    fs.fdatasync(text)
    assert fs.read_bytes("file") == b"textmore"
    fs.fsync("file")
    fs.fdatasync("file")
    fs.fsync("/")
    with pytest.raises(FileNotFoundError):
        fs.fsync("none")
    with pytest.raises(TypeError, match="no file of"):
        fs.fsync(io.BytesIO())
    with pytest.raises(TypeError):
        fs.fsync(7)


def test_a_forgotten_file_is_flushed(fs):
    f = fs.open("file", "wb")
    f.write(b"data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del f
        gc.collect()
    assert fs.read_bytes("file") == b"data"


def test_close_of_the_file_system_flushes_its_files(image):
    with kedgefs.open(image) as fs:
        one, two = fs.open("one", "w"), fs.open("two", "wb")
        one.write("text")
        two.write(b"bytes")
    assert one.closed and two.closed
    with kedgefs.open(image, readonly=True) as fs:
        assert (fs.read_bytes("one"), fs.read_bytes("two")) == (b"text", b"bytes")


def test_permissions_and_owner_of_a_new_file(fs):
    fs.open("file", "wb", permissions=0o600).close()
    found = fs.stat("file")
    assert stat.S_IMODE(found.st_mode) == 0o600 and (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def test_a_full_image_gives_no_space(image):
    with kedgefs.open(image) as fs:
        with fs.open("file", "wb", 0) as f:
            piece = bytes(1 << 20)
            with pytest.raises(OSError) as caught:
                for _ in range(100):
                    f.write(piece)
            assert caught.value.errno == errno.ENOSPC
        with fs.open("file", "ab", 0) as f:
            with pytest.raises(OSError):
                for _ in range(100):
                    f.write(bytearray(piece))
        fs.unlink("file")


def test_builtins_work_on_files(fs):
    import csv
    import json
    import pickle
    import zipfile

    with fs.open("a.json", "w") as f:
        json.dump({"a": 1}, f)
    with fs.open("a.json") as f:
        assert json.load(f) == {"a": 1}
    with fs.open("a.csv", "w", newline="") as f:
        csv.writer(f).writerows([[1, 2], ["ü", 4]])
    with fs.open("a.csv", newline="") as f:
        assert list(csv.reader(f)) == [["1", "2"], ["ü", "4"]]
    with fs.open("a.pickle", "wb") as f:
        pickle.dump(list(range(100000)), f, protocol=5)
    with fs.open("a.pickle", "rb") as f:
        assert pickle.load(f) == list(range(100000))
    with fs.open("a.zip", "w+b") as f:
        with zipfile.ZipFile(f, "w") as z:
            z.writestr("x", "y" * 100000)
        with zipfile.ZipFile(f) as z:
            assert z.read("x") == b"y" * 100000
