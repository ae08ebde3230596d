# In a clean system with python3: /given has the wheel.
python3 -m venv /root/venv
PATH=/root/venv/bin:$PATH
pip install --no-index /given/kedgefs-*.whl
cd /root
cat > note.py <<'PYTHON'
import sys
import kedgefs

with kedgefs.open("notes.kedge", create="64M") as fs:
    if fs.exists("note"):
        with fs.open("note") as f:
            print("the last note:", f.read())
    with fs.open("note.new", "w") as f:
        f.write(sys.argv[1])
        fs.fsync(f)
    fs.replace("note.new", "note")
    fs.fsync("note")
PYTHON
python3 note.py "buy milk"
test "$(python3 note.py "buy bread")" = "the last note: buy milk"
# The command that the wheel has.
test "$(kedge cat notes.kedge:/note)" = "buy bread"
kedge fsck -f notes.kedge
python3 - <<'PYTHON'
import pathlib, kedgefs
place = pathlib.Path(kedgefs.__file__).parent
assert (place / "py.typed").exists(), "the wheel has no type information"
PYTHON
# Another machine and an older Python refuse it.
other=aarch64
if test "$(uname -m)" = $other; then other=x86_64; fi
for option in --platform=manylinux_2_39_$other --python-version=3.10; do
    if pip install --no-index --no-deps --only-binary=:all: --target other $option \
        /given/kedgefs-*.whl 2>why; then exit 1; fi
    grep "not a supported wheel" why
done
