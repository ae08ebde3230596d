"""The plugin on two savers, one right and one wrong."""

import sys

import pytest

from pytest_kedge_crash import KedgeError

SAVE = """
import os
os.chdir(os.environ["KEDGE_DIR"])
with open("doc.tmp", "w") as f:
    f.write("new")
    f.flush()
    os.fsync(f.fileno())
os.rename("doc.tmp", "doc")
{sync}
print("saved", flush=True)
"""
SYNC = "fd = os.open('.', os.O_RDONLY); os.fsync(fd)"
CHECK = 'test -z "$KEDGE_ACKED" || test "$(cat doc)" = new'


def save(kedge_crash, sync):
    return kedge_crash.record([sys.executable, "-c", SAVE.format(sync=sync)], ack="^saved", size="64M")


def test_the_right_saver_passes(kedge_crash):
    found = save(kedge_crash, SYNC).explore(CHECK)
    found.assert_passed()
    assert found.report["states"] > 3


def test_the_wrong_saver_fails_with_the_missing_call(kedge_crash):
    found = save(kedge_crash, "").explore(CHECK, model="ext4")
    assert not found.passed
    with pytest.raises(AssertionError, match=r'fsync\("."\)'):
        found.assert_passed()


def test_a_budget_that_ends_first_is_no_pass(kedge_crash):
    found = save(kedge_crash, SYNC).explore("true", budget=2)
    with pytest.raises(AssertionError, match="not all was tried"):
        found.assert_passed()
    found.assert_passed(complete=False)


def test_what_cannot_be_judged_is_an_error(kedge_crash):
    with pytest.raises(KedgeError, match="without any crash"):
        save(kedge_crash, SYNC).explore("false")
    with pytest.raises(KedgeError, match="ended with 3"):
        kedge_crash.record(["sh", "-c", "exit 3"], size="64M")
    with pytest.raises(KedgeError, match="cannot be started"):
        kedge_crash.record(["/no/such/program"], size="64M")


def test_checkers_that_come_with_kedge_judge_the_files(kedge_crash):
    script = 'cd "$KEDGE_DIR"; echo {} > new; %s new; mv new a.json; sync .'
    for sync, passed in (("sync", True), (":", False)):
        found = kedge_crash.record(["sh", "-ec", script % sync], size="64M").explore(checker="json", model="ext4")
        assert found.passed is passed
    found = kedge_crash.record(["sh", "-ec", script % ":"], size="64M").explore(checker="json", files=["b", "a*"])
    assert found.report["checker"] == "--checker json --files b --files a*"


def test_recoveries_are_crashed_again(kedge_crash):
    run = kedge_crash.record(["sh", "-ec", 'cd "$KEDGE_DIR"; echo 1 > log; sync log .'], size="64M")
    # The recovery leaves a file that it does not expect.
    found = run.explore("test ! -e half || exit 1; test -s log || exit 0; touch half; sync half .; rm half", again=1)
    assert not found.passed and found.report["failing"] == 0
    with pytest.raises(AssertionError, match="In the recovery from the crash state"):
        found.assert_passed()
    run.explore("test ! -s log || rm log", again=2).assert_passed()
