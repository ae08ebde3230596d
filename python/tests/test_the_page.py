"""docs/PYTHON.md names what there is, and the tests of the other files have used all of it."""

import inspect
import re
from pathlib import Path

import pytest

import kedgefs

from conftest import USED, documented

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "PYTHON.md"


def test_each_public_name_is_documented():
    names = {name for name in dir(kedgefs.FileSystem) if not name.startswith("_")}
    names |= {name for name in kedgefs.__all__ if callable(getattr(kedgefs, name)) and name[0].islower()}
    section = PAGE.read_text().split("\n## The file system\n")[1].split("\n## ")[0]
    told = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]*)`", section))))
    assert names - told == set()


def test_each_documented_call_and_argument_is_used_by_a_test(request):
    run = {item.path for item in request.session.items}
    if not run.issuperset(HERE.glob("test_*.py")):
        pytest.skip("only some files run")
    unused = []
    for owner, name in documented():
        attribute = inspect.getattr_static(owner, name)
        if not callable(attribute):
            continue
        wanted = {name, *(f"{name}({argument})" for argument in inspect.signature(attribute).parameters if argument != "self")}
        unused += sorted(wanted - USED[owner.__name__])
    assert not unused, f"no test uses {unused}"
