# A document is saved over an older one, promised when the program has exited with 0.
HOME="$PROGRAM_TEMP/home" timeout 100 soffice --headless --convert-to odt --outdir "$KEDGE_DIR" "$PROGRAM_TEMP/doc.txt" > "$PROGRAM_TEMP/out" 2>&1 && echo "ack saved"
