"""The build backend: maturin, and before it cargo, which builds the program `kedge` for the wheel.

KEDGEFS_WHEEL_PROFILE names a profile of cargo other than `release`, for tests.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROGRAM = HERE / "kedgefs.data" / "scripts" / "kedge"


def _profile():
    return os.environ.get("KEDGEFS_WHEEL_PROFILE", "release")


def _cargo(*words):
    return subprocess.run(["cargo", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _put_program():
    """Builds `kedge` and puts it where maturin takes the scripts of the wheel from."""
    _cargo("build", "--locked", "--profile", _profile(), "-p", "kedge")
    target = json.loads(_cargo("metadata", "--no-deps", "--format-version", "1"))["target_directory"]
    folder = {"dev": "debug"}.get(_profile(), _profile())
    built = Path(target) / folder / "kedge"
    strip = shutil.which("strip")
    if strip is None:
        print("strip is not installed: the wheel has the debug information of kedge")
        shutil.copy2(built, PROGRAM)
    else:
        subprocess.run([strip, "-o", PROGRAM, built], check=True)


def _settings(given):
    # maturin refuses a folder that is not there, before the program is built.
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    settings = dict(given or {})
    settings.setdefault("build-args", f"--profile {_profile()}")
    return settings


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, _settings(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = _settings(config_settings)
    _put_program()
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("kedgefs is built from a checkout of its repository: pip install ./python there")
