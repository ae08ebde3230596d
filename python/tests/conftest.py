"""A file system for each test: one in memory, one in an image file."""

import os
import sysconfig
from pathlib import Path

import pytest

import kedgefs

pytest_plugins = ["pytester"]


@pytest.fixture
def fs():
    with kedgefs.memory() as fs:
        yield fs
        # What a test has shut down cannot be closed without an error.


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
