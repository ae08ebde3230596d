# Ways to save a file. $1: which.
set -e
cd "$KEDGE_DIR"
head -c 9000 /dev/zero | tr '\0' o > doc
sync doc .
echo "ack old"
new() { head -c 9000 /dev/zero | tr '\0' n; }
case "$1" in
in-place) new > doc; sync doc . ;;
rename) new > doc.tmp; mv doc.tmp doc; sync . ;;
no-dir) new > doc.tmp; sync doc.tmp; mv doc.tmp doc ;;
right) new > doc.tmp; sync doc.tmp; mv doc.tmp doc; sync . ;;
sed) sed -i s/o/n/g doc ;;
vim) vim -u NONE -N -b -es -c '%s/o/n/g' -c wq doc ;;
esac
echo "ack new"
