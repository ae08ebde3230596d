# The crate is unpacked, promised when cargo has exited with 0.
cd "$PROGRAM_TEMP/project"
CARGO_HOME="$KEDGE_DIR/cargo" cargo fetch -q --offline && echo "ack fetched"
