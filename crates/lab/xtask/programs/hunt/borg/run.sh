set -e
export BORG_BASE_DIR="$PROGRAM_TEMP/borg" BORG_RELOCATED_REPO_ACCESS_IS_OK=yes BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
cd "$PROGRAM_TEMP/data"
for n in 1 2; do
    borg create -x "$KEDGE_DIR::archive$n" $n
    echo "ack $n"
done
