# Two directories are made equal, promised when unison has exited with 0.
export UNISON="$PROGRAM_TEMP/unison" HOME="$PROGRAM_TEMP"
unison -batch -silent "$KEDGE_DIR/near" "$PROGRAM_TEMP/far" > "$PROGRAM_TEMP/out" 2>&1 || { cat "$PROGRAM_TEMP/out"; exit 1; }
for n in 1 2; do head -c 9001 /dev/zero | tr '\0' n > "$PROGRAM_TEMP/far/$n"; done
unison -batch -silent "$KEDGE_DIR/near" "$PROGRAM_TEMP/far" > "$PROGRAM_TEMP/out" 2>&1 && echo "ack equal"
for n in 1 2; do head -c 9000 /dev/zero | tr '\0' o > "$PROGRAM_TEMP/far/$n"; done
rm -rf "$PROGRAM_TEMP/unison"
