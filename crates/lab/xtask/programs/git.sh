# Commits, each promised when git has returned. $1: options of git.
set -e
cd "$KEDGE_DIR"
export HOME="$KEDGE_DIR" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
for i in 1 2; do
    echo "text $i" > "file$i"
    git $1 add "file$i"
    git $1 commit -qm "commit $i"
    echo "ack $i"
done
