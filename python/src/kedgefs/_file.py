"""Open files: what builtins.open and io.FileIO are for files of the host."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._kedgefs import Handle

_BUFFER = 128 * 1024
_FLAGS = {
    "r": 0,
    "w": os.O_CREAT | os.O_TRUNC,
    "a": os.O_CREAT | os.O_APPEND,
    "x": os.O_CREAT | os.O_EXCL,
}


class Mode:
    """The flags of a mode such as "r+b"."""

    def __init__(self, mode: str) -> None:
        if not isinstance(mode, str):
            raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
        letters = set(mode)
        if letters - set("rwaxbt+") or len(mode) > len(letters) or len(letters & set("rwax")) != 1:
            raise ValueError(f"invalid mode: {mode!r}")
        if "b" in letters and "t" in letters:
            raise ValueError("can't have text and binary mode at once")
        self.binary = "b" in letters
        plus = "+" in letters
        self.read = "r" in letters or plus
        self.write = "r" not in letters or plus
        main = (letters & set("rwax")).pop()
        self.flags = _FLAGS[main]
        self.flags |= os.O_RDWR if plus else os.O_RDONLY if self.read else os.O_WRONLY
        self.raw = main + "b" + ("+" if plus else "")


class RawFile(io.RawIOBase):
    """An open file without a buffer. FileSystem.open makes it."""

    name: Any
    mode: str

    def __init__(self, handle: Handle, name: Any, mode: Mode) -> None:
        self._handle = handle
        self._read, self._write = mode.read, mode.write
        self.name = name
        self.mode = mode.raw

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"name={self.name!r} mode={self.mode!r}"
        return f"<kedgefs.RawFile {state}>"

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def readable(self) -> bool:
        self._check()
        return self._read

    def writable(self) -> bool:
        self._check()
        return self._write

    def seekable(self) -> bool:
        self._check()
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes; all to the end for -1 or None."""
        if size is None or size < 0:
            return self._handle.readall()
        return self._handle.read(size)

    def readall(self) -> bytes:
        return self._handle.readall()

    def readinto(self, buffer: Any, /) -> int:
        return self._handle.readinto(buffer)

    def write(self, data: Any, /) -> int:
        """Writes bytes, and returns how many: less than all only if space or the device failed."""
        return self._handle.write(data)

    def pread(self, size: int, offset: int, /) -> bytes:
        """Up to `size` bytes at `offset`. The position stays."""
        return self._handle.pread(size, offset)

    def pwrite(self, data: Any, offset: int, /) -> int:
        """Writes at `offset`. The position stays."""
        return self._handle.pwrite(data, offset)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """As of a file of the host, with os.SEEK_DATA and os.SEEK_HOLE."""
        return self._handle.seek(offset, whence)

    def tell(self) -> int:
        return self._handle.tell()

    def truncate(self, size: int | None = None, /) -> int:
        return self._handle.truncate(size)

    def fsync(self) -> None:
        """Makes data, attributes, the name and all directories above it durable."""
        self._handle.fsync()

    def fdatasync(self) -> None:
        """Makes the data durable, and what is needed to read it."""
        self._handle.fdatasync()

    def stat(self) -> os.stat_result:
        return self._handle.stat()

    def close(self) -> None:
        """Closes the file. Makes nothing durable: fsync does."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._handle.close()


def layered(
    raw: RawFile,
    mode: Mode,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """The layers above a raw file that builtins.open would make."""
    if buffering == 0:
        if mode.binary:
            return raw
        raise ValueError("can't have unbuffered text I/O")
    by_line = buffering == 1 and not mode.binary
    size = buffering if buffering > 1 else _BUFFER
    buffer: Any
    if mode.read and mode.write:
        buffer = io.BufferedRandom(raw, size)
    elif mode.write:
        buffer = io.BufferedWriter(raw, size)
    else:
        buffer = io.BufferedReader(raw, size)
    if mode.binary:
        return buffer
    text = io.TextIOWrapper(buffer, io.text_encoding(encoding), errors, newline, by_line)
    text.mode = "".join(letter for letter in mode.raw if letter != "b")  # type: ignore[misc]
    return text


def raw_of(file: Any) -> RawFile:
    """The raw file below a buffer or text layer, which is flushed."""
    file.flush()
    raw = file
    while not isinstance(raw, RawFile):
        below = getattr(raw, "buffer", None) or getattr(raw, "raw", None)
        if below is None:
            raise TypeError(f"{file!r} is no file of a kedgefs.FileSystem")
        raw = below
    return raw
