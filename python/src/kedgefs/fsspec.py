"""A file system for fsspec, and so for pandas, pyarrow, zarr and dask: the protocol "kedgefs".

    kedgefs://inner/path::/path/of/disk.kedge        or with storage_options={"fo": "disk.kedge"}
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import _filesystem as _fs

__all__ = ["KedgeFileSystem"]


class _Shared:
    """An image that several KedgeFileSystem objects of this process use. It is closed when one of
    them is closed, or at the end of the program."""

    lock = threading.Lock()
    images: dict[str, _Shared] = {}

    def __init__(self, key: str, how: tuple[Any, ...], fs: _fs.FileSystem) -> None:
        self.key, self.how, self.fs = key, how, fs

    @classmethod
    def get(cls, fo: str, readonly: bool, create: Any, options: dict[str, Any]) -> _Shared:
        key = fo if "://" in fo or fo.startswith(("rbd:", "nbd")) else os.path.realpath(fo)
        how = (readonly, tuple(sorted((name, str(value)) for name, value in options.items())))
        with cls.lock:
            found = cls.images.get(key)
            if found is not None and not found.fs.closed:
                if found.how != how:
                    raise ValueError(f"{fo} is open in this process with other options")
                return found
            made = cls(key, how, _fs.open(fo, readonly, create=create, **options))
            cls.images[key] = made
            return made

    @classmethod
    def forget(cls) -> None:
        """In a child: the thread that held the lock does not exist here, and the images are of the
        parent."""
        cls.lock = threading.Lock()
        cls.images = {}


os.register_at_fork(after_in_child=_Shared.forget)


class KedgeFileSystem(AbstractFileSystem):
    """The files of an image.

    fo: the image. readonly: nothing is changed, and other processes may read it, too. create: the
    size of an image that is made if the file does not exist. sync_on_close: a file is durable when
    its close returns; otherwise sync() makes it so. Other options are those of kedgefs.open.
    """

    protocol = "kedgefs"
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        fo: str | os.PathLike[str] | None = None,
        readonly: bool = False,
        create: int | str | None = None,
        sync_on_close: bool = False,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        storage = {name: options.pop(name) for name in _STORAGE if name in options}
        super().__init__(**storage)
        if fo is None:
            raise ValueError('kedgefs:// needs an image: "kedgefs://file::disk.kedge", or fo="disk.kedge"')
        if target_protocol not in (None, "file", "local"):
            raise ValueError(f"an image is a file of this machine, not of {target_protocol}://")
        self.fo = str(stringify_path(fo))
        self.sync_on_close = sync_on_close
        self._shared = _Shared.get(self.fo, readonly, create, options)

    @property
    def image(self) -> _fs.FileSystem:
        """The kedgefs.FileSystem below."""
        return self._shared.fs

    def close(self) -> None:
        """Closes the image, for all KedgeFileSystem objects of it in this process."""
        with _Shared.lock:
            if _Shared.images.get(self._shared.key) is self._shared:
                del _Shared.images[self._shared.key]
        self.clear_instance_cache()
        self._shared.fs.close()

    def sync(self) -> None:
        """Makes everything durable."""
        self.image.sync()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path).split("::", 1)[0]
        for start in ("kedgefs://", "kedgefs:"):
            path = path.removeprefix(start)
        return "/" + path.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"kedgefs:/{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        return f"kedgefs:{self.image.info()['uuid']}"

    # ----- names -----

    def _info_of(self, path: str, found: os.stat_result, link: os.stat_result | None) -> dict[str, Any]:
        import stat

        kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file"}
        info = {
            "name": path,
            "size": found.st_size if stat.S_ISREG(found.st_mode) else 0,
            "type": kinds.get(stat.S_IFMT(found.st_mode), "other"),
            "islink": link is not None,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "mtime": found.st_mtime,
        }
        if link is not None:
            info["destination"] = self.image.readlink(path)
        return info

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = link = self.image.lstat(path)
        import stat

        if not stat.S_ISLNK(link.st_mode):
            return self._info_of(path, found, None)
        try:
            found = self.image.stat(path)
        except OSError:
            # A link to nothing is shown as what it is.
            pass
        return self._info_of(path, found, link)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            above = "" if path == "/" else path
            infos = []
            for name in self.image.listdir(path):
                try:
                    infos.append(self.info(f"{above}/{name}"))
                except FileNotFoundError:
                    # Another thread has removed it.
                    pass
        else:
            infos = [info]
        return infos if detail else [each["name"] for each in infos]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.image.exists(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.image.isfile(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.image.isdir(self._strip_protocol(path))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self.image.lexists(path):
            raise FileExistsError(17, "File exists", path)
        if create_parents:
            self.image.makedirs(path)
        else:
            self.image.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.image.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.image.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.image.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive, maxdepth)
            return
        for each in path if isinstance(path, list) else [path]:
            each = self._strip_protocol(each)
            if not self.image.isdir(each) or self.image.islink(each):
                self.image.unlink(each)
            elif not recursive:
                raise IsADirectoryError(21, "Is a directory", each)
            elif each == "/":
                raise ValueError("the root of the image cannot be removed")
            else:
                self.image.rmtree(each)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.image.isdir(path1):
            self.image.makedirs(path2, exist_ok=True)
            return
        self._make_above(path2)
        with self.image.open(path1, "rb", 0) as source:
            try:
                same = self.image.stat(path2).st_ino == source.stat().st_ino
            except FileNotFoundError:
                same = False
            if same:
                raise shutil.SameFileError(f"{path1!r} and {path2!r} are the same file")
            with self.image.open(path2, "wb", 0) as target:
                while piece := source.read(1 << 20):
                    _write_all(target, piece)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Moves a file or a directory, atomically."""
        if isinstance(path1, list) or isinstance(path2, list):
            super().mv(path1, path2, recursive=recursive, **kwargs)
            return
        self.mv_file(path1, path2)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.image.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def link(self, src: str, dst: str, **kwargs: Any) -> None:
        self.image.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: str, dst: str, **kwargs: Any) -> None:
        self.image.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def islink(self, path: str) -> bool:
        return self.image.islink(self._strip_protocol(path))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._make_above(path)
        with self.image.open(path, "wb" if truncate else "ab", 0):
            self.image.utime(path)

    def created(self, path: str) -> Any:
        raise NotImplementedError("fsspec has no creation times of kedgefs")

    def modified(self, path: str) -> Any:
        import datetime

        found = self.image.stat(self._strip_protocol(path))
        return datetime.datetime.fromtimestamp(found.st_mtime, tz=datetime.timezone.utc)

    def chmod(self, path: str, mode: int) -> None:
        self.image.chmod(self._strip_protocol(path), mode)

    # ----- files -----

    def _make_above(self, path: str) -> None:
        above = self._parent(path)
        if not self.image.isdir(above):
            self.image.makedirs(above, exist_ok=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if not any(letter in mode for letter in "wax+"):
            return self.image.open(path, mode)
        self._make_above(path)
        file = _Written(self, path, mode, autocommit)
        if not autocommit and "r" in mode:
            # fsspec adds the files of all other modes to the transaction.
            self.transaction.files.append(file)
        return file

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        with self.image.open(self._strip_protocol(path), "rb", 0) as file:
            if start is None and end is None:
                return file.readall()
            size = file.stat().st_size
            first, last, _ = slice(start, end).indices(size)
            return file.pread(max(last - first, 0), first)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        # `open` and not `_open`: in a transaction the file belongs to it.
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    # ----- forks -----

    def fork(self, src: str, dst: str, readonly: bool = False) -> None:
        """A copy of a whole tree at one moment, such as of "/": FileSystem.fork."""
        self.image.fork(self._strip_protocol(src), self._strip_protocol(dst), readonly=readonly)


_STORAGE = (
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
    "asynchronous",
    "loop",
    "skip_instance_cache",
)


def _write_all(raw: Any, data: Any) -> None:
    view = memoryview(data)
    while len(view) > 0:
        view = view[raw.write(view) :]


class _Written:
    """A file that is written. In a transaction it has another name until it is committed."""

    def __init__(self, fs: KedgeFileSystem, path: str, mode: str, autocommit: bool) -> None:
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        self._name = path
        if not autocommit:
            above, name = os.path.split(path)
            self._name = os.path.join(above, f".{uuid.uuid4().hex[:8]}.{name[:200]}.new")
            if "x" in mode and fs.image.lexists(path):
                raise FileExistsError(17, "File exists", path)
            if "a" in mode or "+" in mode and "w" not in mode:
                must_exist = "r" in mode
                old = fs.image.read_bytes(path) if must_exist or fs.exists(path) else b""
                fs.image.write_bytes(self._name, old)
        self._file = fs.image.open(self._name, mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            if self.fs.sync_on_close and self.autocommit:
                self.fs.image.fsync(self._file)
        finally:
            self._file.close()

    def commit(self) -> None:
        """Gives the file its name, when its bytes are durable: no crash leaves a part of it."""
        self.close()
        self.fs.image.fdatasync(self._name)
        self.fs.image.replace(self._name, self.path)
        if self.fs.sync_on_close:
            self.fs.image.fsync(self.path)

    def discard(self) -> None:
        self.close()
        self.fs.image.unlink(self._name)
