set -e
export HOME="$PROGRAM_TEMP" USER=zoo
mkdir "$PROGRAM_TEMP/work"; cd "$PROGRAM_TEMP/work"
fossil open "$KEDGE_DIR/zoo.fossil" > /dev/null
for n in 1 2 3; do
    head -c 9000 /dev/zero | tr '\0' $n > file$n
    fossil add file$n > /dev/null; fossil commit --no-warnings -m "commit $n" > /dev/null
    echo "ack $n"
done
cd ..; rm -rf work
