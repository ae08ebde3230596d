# Installs a package. It is promised when pip has returned.
set -e
export TMPDIR="$PROGRAM_TEMP" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
python3 -m pip install -q --no-index --no-deps --no-compile --target "$KEDGE_DIR/lib" "$PROGRAM_TEMP/zoo_pkg-1-py3-none-any.whl"
echo "ack installed"
