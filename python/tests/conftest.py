"""A file system for each test: one in memory, one in an image file."""

import functools
import inspect
import os
import sys
import sysconfig
from pathlib import Path

import pytest

import kedgefs


def pytest_collection_modifyitems(items):
    if os.environ.get("KEDGE_NO_FUSE") == "1":
        for item in items:
            if "kedge_crash" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason="KEDGE_NO_FUSE=1: nothing is mounted, so nothing is recorded"))


@pytest.fixture
def fs():
    with kedgefs.memory() as fs:
        yield fs


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "disk.kedge"
    kedgefs.mkfs(path, "64M")
    return path


@pytest.fixture(scope="session")
def kedge():
    """The command of the same wheel."""
    named = os.environ.get("KEDGE")
    return Path(named) if named else Path(sysconfig.get_path("scripts")) / "kedge"


# ----- what the tests use, which test_the_page.py compares with docs/PYTHON.md -----

TESTS = str(Path(__file__).parent)
# For each owner the names that a test has called without an error, and with "name(argument)" what it gave.
USED = {}


def documented():
    """Each owner of public names, with each of them."""
    names = {
        kedgefs: ["memory", "mkfs", "open"],
        kedgefs.FileSystem: [name for name in dir(kedgefs.FileSystem) if not name.startswith("_")],
        kedgefs.RawFile: ["fdatasync", "fsync", "pread", "pwrite", "stat"],
    }
    return [(owner, name) for owner in names for name in names[owner]]


def watch(owner, name):
    function = getattr(owner, name)
    if not callable(function):
        return
    arguments, used = inspect.signature(function), USED.setdefault(owner.__name__, set())

    @functools.wraps(function)
    def watched(*args, **kwargs):
        result = function(*args, **kwargs)
        if sys._getframe(1).f_code.co_filename.startswith(TESTS):
            used.add(name)
            used.update(f"{name}({given})" for given in arguments.bind(*args, **kwargs).arguments)
        return result

    setattr(owner, name, watched)


for each in documented():
    watch(*each)
