"""Crash states of a program that uses the library in its process: the image is a file whose calls
`kedge crash` records."""

import os
import sys
from pathlib import Path

import pytest

import kedgefs

SAVER = Path(__file__).parent / "saver.py"

# A run that takes long tries 10,000 states and more.
LONG = os.environ.get("KEDGE_LONG") == "1"
STATES = 10_500 if LONG else 60
ROUNDS = 40 if LONG else 4


@pytest.fixture
def start(tmp_path):
    """The directory in which the program begins: an empty image."""
    folder = tmp_path / "start"
    folder.mkdir()
    kedgefs.mkfs(folder / "disk.kedge", "16M", log_size="1M")
    return folder


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_no_crash_takes_what_was_promised(kedge_crash, start, model):
    run = kedge_crash.record([sys.executable, SAVER, "save", ROUNDS], ack="^(saved|logged|synced)", start=start, size="64M")
    found = run.explore(f"{sys.executable} {SAVER} check", model=model, budget=STATES)
    found.assert_passed(complete=False)
    print(found.report["states"], "states,", model)
    assert found.report["states"] >= STATES * 9 // 10


def test_a_sync_that_is_missing_is_found(kedge_crash, start):
    run = kedge_crash.record([sys.executable, SAVER, "forget", 4], ack="^(saved|logged|synced)", start=start, size="64M")
    found = run.explore(f"{sys.executable} {SAVER} check", budget=100)
    assert not found.passed and "was promised" in str(found.report)
