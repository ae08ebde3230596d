# A file is edited in a terminal and written; the promise is nano's exit.
cd "$KEDGE_DIR"
type() {
    sleep 1; printf 'nnnnnnnn'; sleep 0.3
    printf '\017'; sleep 0.3; printf '\r'; sleep 0.5; printf '\030'; sleep 0.5
}
type | HOME="$PROGRAM_TEMP" TERM=xterm script -qec "nano --ignorercfiles notes" /dev/null > /dev/null && echo "ack saved"
