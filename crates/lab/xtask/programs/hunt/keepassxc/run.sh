# Entries are added, each promised when the program has exited with 0.
export HOME="$PROGRAM_TEMP" QT_QPA_PLATFORM=offscreen
for n in 1 2 3; do
    keepassxc-cli add -q --no-password -k "$PROGRAM_TEMP/key" "$KEDGE_DIR/zoo.kdbx" "entry$n" || exit 1
    echo "ack $n"
done
