# A wheel.
cd "$PROGRAM_TEMP" && python3 - <<'PY'
import zipfile

with zipfile.ZipFile("zoo_pkg-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("zoo_pkg.py", "TEXT = '" + "n" * 9000 + "'\n")
    wheel.writestr("zoo_pkg-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zoo_pkg\nVersion: 1\n")
    wheel.writestr("zoo_pkg-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: zoo\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("zoo_pkg-1.dist-info/RECORD", "zoo_pkg.py,,\nzoo_pkg-1.dist-info/METADATA,,\nzoo_pkg-1.dist-info/WHEEL,,\nzoo_pkg-1.dist-info/RECORD,,\n")
PY
