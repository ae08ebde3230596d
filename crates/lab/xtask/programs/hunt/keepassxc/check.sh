# The database opens, and has each promised entry.
export HOME="$PROGRAM_TEMP" QT_QPA_PLATFORM=offscreen
keepassxc-cli ls -q --no-password -k "$PROGRAM_TEMP/key" zoo.kdbx > out 2>&1 || { tail -1 out; exit 1; }
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    grep -qx "entry$n" out || { echo "entry $n was added and is not there"; exit 1; }
    n=$((n + 1))
done
