"""Crash-test programs in pytest, with the program `kedge` (the environment variable KEDGE may give its path)."""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

__all__ = ["Explored", "KedgeCrash", "KedgeError", "Recording"]

# Exit codes of `kedge crash explore`.
PASSED, FAILED, FAILED_EARLY = 0, 1, 4


class KedgeError(Exception):
    """`kedge` failed, so there is no verdict on the program."""


class Explored:
    """The result of the search. `report` is the JSON of `kedge crash explore --json`."""

    def __init__(self, report):
        self.report = report

    @property
    def passed(self):
        return self.report["passed"]

    @property
    def complete(self):
        """All systematic states were tried."""
        return self.report["complete"]

    @property
    def sentences(self):
        again = self.report.get("again") or {"causes": []}
        return [cause["sentence"] for cause in self.report["causes"] + again["causes"]]

    def assert_passed(self, complete=True):
        """Fails the test with the sentences, or because the budget ended first (unless `complete` is false)."""
        lines = [self.report["verdict"], *self.sentences]
        assert self.passed, "\n\n".join(lines)
        assert self.complete or not complete, f"{self.report['verdict']}: {self.report['coverage']}"


class Recording:
    """A recorded run of a program; `code` is its exit code."""

    def __init__(self, kedge, path, code, output):
        self._kedge, self.path, self.code, self.output = kedge, path, code, output

    def explore(self, check=None, *, model="posix", check_files=False, checker=None, files=(), query=None, again=None,
                budget=None, explain=None, seed=1, html=None):
        """Tries crash states. `check` is a shell command, run in each; or `check_files=True`; or `checker`, the name
        of one that comes with kedge, with patterns of `files` and, for sqlite, a `query`. A relative path at the
        beginning of `check` is relative to the directory of the tests. `again`: crash recoveries as well, to this
        depth. `explain`: time limit for explanations."""
        words = ["explore", str(self.path), "--json", "--quiet", "--model", model, "--seed", str(seed)]
        words += ["--check", check] if check is not None else []
        words += ["--check-files"] if check_files else []
        words += ["--checker", checker] if checker is not None else []
        words += [word for pattern in files for word in ("--files", pattern)]
        words += ["--query", query] if query is not None else []
        words += ["--again", str(again)] if again is not None else []
        words += ["--budget", str(budget)] if budget is not None else []
        words += ["--explain", str(explain)] if explain is not None else []
        words += ["--html", str(html)] if html is not None else []
        run = self._kedge(words)
        if run.returncode not in (PASSED, FAILED, FAILED_EARLY):
            raise KedgeError(f"{run.stderr}{run.stdout}")
        return Explored(json.loads(run.stdout))


class KedgeCrash:
    def __init__(self, program, directory, cwd):
        self._program, self._directory, self._cwd, self._count = program, Path(directory), cwd, 0

    def _kedge(self, words):
        return subprocess.run(
            [self._program, "crash", *words], cwd=self._cwd, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )

    def record(self, command, *, ack=None, start=None, cd=False, size="1G", timeout=None, expect=0):
        """Runs `command` (a list of words) on a new file system. `start`: a directory with its initial content.
        `expect`: its exit code, or None for any."""
        self._count += 1
        path = self._directory / f"run{self._count}.kcr"
        words = ["record", "-o", str(path), "--size", str(size)]
        words += ["--ack", ack] if ack is not None else []
        words += ["--from", str(start)] if start is not None else []
        words += ["--cd"] if cd else []
        words += ["--timeout", str(timeout)] if timeout is not None else []
        run = self._kedge([*words, "--", *map(str, command)])
        if not path.exists() or "recorded in" not in run.stderr:
            raise KedgeError(run.stderr)
        if expect is not None and run.returncode != expect:
            raise KedgeError(f"the program ended with {run.returncode}: {run.stdout}{run.stderr}")
        return Recording(self._kedge, path, run.returncode, run.stdout)


@pytest.fixture
def kedge_crash(tmp_path_factory):
    """Records programs and explores their crash states. Without `kedge` the test fails, since a skip would look
    like a pass."""
    # An environment that is not activated is not in PATH.
    program = os.environ.get("KEDGE") or shutil.which("kedge", path=sysconfig.get_path("scripts")) or shutil.which("kedge")
    if program is None:
        pytest.fail("kedge is not installed (pip install kedgefs), or KEDGE does not name it", pytrace=False)
    return KedgeCrash(program, tmp_path_factory.mktemp("kedge-crash"), os.getcwd())
