# Runs the script that reads this again, with a network and processes of its own, which end with it.
# Its ports are free, whatever else runs. $PROGRAM_LOG is a directory for output.
if test -z "$PROGRAM_ALONE"; then
    export PROGRAM_ALONE=1 PROGRAM_LOG=$(mktemp -d /tmp/kedge-programs-XXXXXX)
    unshare --net --pid --fork --kill-child --mount-proc sh "$0" "$@"
    code=$?
    rm -rf "$PROGRAM_LOG"
    exit $code
fi
python3 -c '
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))' # the loopback device is up
