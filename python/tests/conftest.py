"""A file system for each test: one in memory, one in an image file."""

import os
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
