set -e
export HOME="$PROGRAM_TEMP" QT_QPA_PLATFORM=offscreen
keepassxc-cli db-create -q -t 100 --set-key-file "$PROGRAM_TEMP/key" "$PROGRAM_FROM/zoo.kdbx"
