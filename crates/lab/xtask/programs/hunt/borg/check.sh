# The repository passes its own check, and has each promised archive.
export BORG_BASE_DIR="$PROGRAM_TEMP/check$$" BORG_RELOCATED_REPO_ACCESS_IS_OK=yes BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
rm -rf lock.exclusive lock.roster
borg check --verify-data . 2> out; code=$?
n=1
while test $code -le 1 -a $n -le "$KEDGE_ACKED_COUNT"; do
    borg list ".::archive$n" > /dev/null 2>> out || code=9
    n=$((n + 1))
done
rm -rf "$BORG_BASE_DIR"
test $code -le 1 || { tail -2 out; exit 1; }
