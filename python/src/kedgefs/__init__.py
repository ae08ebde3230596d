"""KedgeFS: a crash-consistent file system in one image file, in this process.

    with kedgefs.open("disk.kedge", create="64M") as fs:
        with fs.open("note.new", "w") as f:
            f.write("buy milk")
            fs.fsync(f)
        fs.replace("note.new", "note")
        fs.fsync("note")                 # the new name, too

Objects may be used from every thread. Each call releases the interpreter's lock.
"""

from ._filesystem import DirEntry, FileSystem, Limit, Tree, memory, mkfs, open
from ._file import RawFile
from ._kedgefs import __version__

__all__ = ["DirEntry", "FileSystem", "Limit", "RawFile", "Tree", "__version__", "memory", "mkfs", "open"]
