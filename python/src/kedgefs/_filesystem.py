"""The file system: paths, and what needs no engine."""

from __future__ import annotations

import atexit
import builtins
import enum
import errno as _errno
import json
import os
import stat as _stat
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from . import _kedgefs
from ._file import Mode, RawFile, layered, raw_of

StrPath = Any

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _bytes_of(size: int | str) -> int:
    """A size in bytes, or text such as "64M"."""
    if isinstance(size, str):
        number, unit = (size[:-1], _UNITS[size[-1]]) if size[-1:] in _UNITS else (size, 1)
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f"size {size!r}: sizes are written as 65536, 64K, 16M, 4G")
        size = int(number) * unit
    if not 0 <= size < 1 << 63:
        raise ValueError(f"size {size}: no image has it")
    return size


def _words(options: dict[str, Any]) -> list[str]:
    """Mount options: True is the word alone, False and None leave it out, others are its value."""
    words = []
    for name, value in options.items():
        word = "key-file" if name == "key_file" else name
        if value is True:
            words.append(word)
        elif value is not None and value is not False:
            text = os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)
            if "," in text:
                raise ValueError(f"option {word}={text}: a value has no comma")
            words.append(f"{word}={text}")
    return words


def mkfs(
    path: StrPath,
    size: int | str,
    *,
    label: str = "",
    log_size: int | str | None = None,
    immutable: bool = False,
) -> None:
    """Makes an image of `size` bytes (or "64M") in a new file. FileExistsError if it exists."""
    log = None if log_size is None else _bytes_of(log_size)
    _kedgefs.mkfs(path, _bytes_of(size), label=label, log_size=log, immutable=immutable)


def open(
    path: StrPath,
    readonly: bool = False,
    *,
    create: int | str | None = None,
    **options: Any,
) -> FileSystem:
    """Opens an image: a file, a block device, or a URI (nbd:, rbd:). An image that was not closed
    is recovered first.

    `create` is the size of an image that is made if the file does not exist. `options` are those of
    `kedge mount -o`: commit=1, cache_size="32M", noatime=True, key_file="key".
    """
    words = _words(options)
    if create is not None:
        try:
            mkfs(path, create)
        except FileExistsError:
            pass
    return FileSystem(_kedgefs.open(path, ",".join(words + ["ro"] * readonly), readonly))


def memory(size: int | str = "64M") -> FileSystem:
    """A new file system in memory, for tests."""
    return FileSystem(_kedgefs.memory(_bytes_of(size)))


_OPEN: weakref.WeakSet[FileSystem] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # The stack calls all, also after one that raises.
    with ExitStack() as stack:
        for fs in list(_OPEN):
            stack.callback(fs._end)


class Kept(enum.Enum):
    """A maximum that stays as it is."""

    KEPT = "kept"


KEPT = Kept.KEPT


class Limit(NamedTuple):
    """The limit of a directory and everything below it, and what is used of it."""

    path: str
    size: int | None
    files: int | None
    size_used: int
    files_used: int


class Tree(NamedTuple):
    """A tree of an image: the first one, a fork or a snapshot."""

    path: str
    readonly: bool
    created: int
    inodes: int


class DirEntry:
    """An entry of FileSystem.scandir, as os.DirEntry."""

    __slots__ = ("_fs", "_ino", "_kind", "name", "path")

    def __init__(self, fs: FileSystem, above: Any, name: Any, ino: int, kind: int) -> None:
        self._fs, self._ino, self._kind = fs, ino, kind
        self.name = name
        self.path = os.path.join(above, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<kedgefs.DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._ino

    def is_symlink(self) -> bool:
        return _stat.S_ISLNK(self._kind)

    def _mode(self, follow_symlinks: bool) -> int:
        if not (follow_symlinks and self.is_symlink()):
            return self._kind
        try:
            return self._fs.stat(self.path).st_mode
        except FileNotFoundError:
            return 0

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return _stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return _stat.S_ISREG(self._mode(follow_symlinks))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)


class _Scan:
    """The iterator of scandir, which is a context manager as that of os."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class FileSystem(_kedgefs.Volume):
    """An open image. kedgefs.open and kedgefs.memory make it; it is a context manager.

    Paths are str, bytes or os.PathLike. "/" is the root of the image; a relative path starts there.
    Errors are OSError with errno and filename; a closed file system raises ValueError.
    """

    _files: weakref.WeakSet[Any]

    def __init__(self, _opening: object) -> None:
        self._files = weakref.WeakSet()
        _OPEN.add(self)

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kedgefs.FileSystem {'closed' if self.closed else 'open'}>"

    def __reduce__(self) -> Any:
        raise TypeError("an open file system belongs to its process")

    def close(self) -> None:
        """Flushes and closes the files that are open, makes everything durable, and unlocks the
        image. The file system is closed whatever is raised: OSError if data could not be written.
        """
        if self.closed:
            return
        first: BaseException | None = None
        if not self._is_of_parent:
            for file in list(self._files):
                try:
                    file.close()
                except Exception as e:
                    first = first or e
        _OPEN.discard(self)
        self._close()
        if first is not None:
            raise first

    def _end(self) -> None:
        """The end of a program, or of the last reference, without close()."""
        if self.closed or self._is_of_parent:
            return
        try:
            # Raises if the program turns warnings into errors.
            warnings.warn(f"unclosed file system {self!r}", ResourceWarning, source=self)
        finally:
            self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self._end()

    # ----- files -----

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> Any:
        """Opens a file, as builtins.open does. `permissions` are those of a file that is created;
        no umask is applied."""
        how = Mode(mode)
        if how.binary:
            for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
                if value is not None:
                    raise ValueError(f"binary mode doesn't take an {name} argument")
        if buffering == 0 and not how.binary:
            raise ValueError("can't have unbuffered text I/O")
        handle = self._open(path, how.flags, permissions)
        raw = RawFile(handle, path, how)
        try:
            file = layered(raw, how, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise
        self._files.add(file)
        return file

    def fsync(self, file: Any) -> None:
        """Makes a file durable: data, attributes, its name and all directories above it. `file` is
        an open file, which is flushed first, or a path. A directory: its entries."""
        if hasattr(file, "flush"):
            raw_of(file).fsync()
        else:
            self._fsync(file)

    def fdatasync(self, file: Any) -> None:
        """Makes the data of a file durable, and what is needed to read it."""
        if hasattr(file, "flush"):
            raw_of(file).fdatasync()
        else:
            self._fsync(file, datasync=True)

    def read_bytes(self, path: StrPath) -> bytes:
        """The contents of a file."""
        with self.open(path, "rb", 0) as file:
            return file.readall()

    def write_bytes(self, path: StrPath, data: Any) -> None:
        """Replaces the contents of a file, which is durable with the next sync only."""
        with self.open(path, "wb") as file:
            file.write(data)

    # ----- names -----

    def scandir(self, path: StrPath = "/") -> _Scan:
        """The entries of a directory, as os.scandir."""
        above = os.fspath(path)
        entries = self._entries(path)
        return _Scan(DirEntry(self, above, *entry) for entry in entries)

    def makedirs(self, path: StrPath, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        path = os.fspath(path)
        above, name = os.path.split(path)
        if not name:
            above, name = os.path.split(above)
        if above and name and not self.exists(above):
            # Another thread may be faster.
            self.makedirs(above, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except OSError:
            if not exist_ok or not self.isdir(path):
                raise

    def walk(
        self,
        top: StrPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], Any] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """As os.walk."""
        top = os.fspath(top)
        try:
            entries = self._entries(top)
        except OSError as e:
            if onerror is not None:
                onerror(e)
            return
        dirs: list[Any] = []
        files: list[Any] = []
        for entry in entries:
            found = DirEntry(self, top, *entry)
            try:
                is_dir = found.is_dir()
            except OSError:
                # A link to itself or below a file, as in os.walk.
                is_dir = False
            (dirs if is_dir else files).append(found.name)
        if topdown:
            yield top, dirs, files
        for name in dirs:
            below = os.path.join(top, name)
            if followlinks or not self.islink(below):
                yield from self.walk(below, topdown, onerror, followlinks)
        if not topdown:
            yield top, dirs, files

    def _mode_of(self, path: StrPath, follow_symlinks: bool = True) -> int:
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except OSError as e:
            if e.errno in (_errno.ENOENT, _errno.ENOTDIR, _errno.ELOOP, _errno.ENAMETOOLONG):
                return 0
            raise

    def exists(self, path: StrPath) -> bool:
        return self._mode_of(path) != 0

    def lexists(self, path: StrPath) -> bool:
        return self._mode_of(path, False) != 0

    def isfile(self, path: StrPath) -> bool:
        return _stat.S_ISREG(self._mode_of(path))

    def isdir(self, path: StrPath) -> bool:
        return _stat.S_ISDIR(self._mode_of(path))

    def islink(self, path: StrPath) -> bool:
        return _stat.S_ISLNK(self._mode_of(path, False))

    # ----- attributes -----

    def utime(
        self,
        path: StrPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of the last read and the last change, as os.utime."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        pair: tuple[int | None, int | None] = (None, None)
        if ns is not None:
            pair = (ns[0], ns[1])
        elif times is not None:
            pair = (_nanos(times[0]), _nanos(times[1]))
        self._utime(path, *pair, follow_symlinks=follow_symlinks)

    # ----- the whole -----

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops all changes, and makes the image on the host consistent and clean, so that it can
        be copied. Changes of other threads wait; do not change anything in the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def set_options(self, **options: Any) -> None:
        """Changes options of the open file system: those that a remount can change."""
        self._set_options(",".join(_words(options)))

    def info(self) -> dict[str, Any]:
        """Identity, geometry, options, and what recovery did."""
        return json.loads(self._info())

    def stats(self) -> dict[str, Any]:
        """The counters of `kedge stats`."""
        return json.loads(self._stats())

    def snapshot(self, src: StrPath, dst: StrPath) -> None:
        """A copy of a whole tree at one moment, in which nothing can be changed. It takes as long
        for a large tree as for a small one."""
        self.fork(src, dst, readonly=True)

    def set_limit(
        self, path: StrPath, *, size: int | str | None | Kept = KEPT, files: int | None | Kept = KEPT
    ) -> None:
        """Limits the bytes of file data (or "64M") and the number of files at and below a
        directory. None removes a maximum; one that is not given stays as it is. What would need
        more fails with EDQUOT from then on."""
        keep: tuple[bool, int | None] = (False, None)
        new_size = keep if isinstance(size, Kept) else (True, None if size is None else _bytes_of(size))
        new_files = keep if isinstance(files, Kept) else (True, files)
        self._set_limit(path, new_size, new_files)

    def limit_of(self, path: StrPath) -> Limit | None:
        """The nearest limit at or above a file or directory."""
        found = self._limit_of(path)
        return None if found is None else Limit(*found)

    def trees(self) -> list[Tree]:
        """All trees; the first tree comes first."""
        return [Tree(*tree) for tree in self._trees()]


def _nanos(seconds: float) -> int:
    if isinstance(seconds, int):
        return seconds * 1_000_000_000
    whole = builtins.int(seconds // 1)
    return whole * 1_000_000_000 + builtins.int((seconds - whole) * 1e9)
