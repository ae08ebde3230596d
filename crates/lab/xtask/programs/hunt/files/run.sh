# The program $1 updates its files, promised when it has exited with 0.
set -e
cd "$KEDGE_DIR"
case $1 in
sort) sort -n -o lines lines ;;
zip) zip -q -u zoo.zip "$PROGRAM_TEMP/new/3" ;;
useradd) useradd -M -U --prefix "$PWD" zoo1 2> /dev/null ;;
ldconfig) echo >> etc/ld.so.conf; ldconfig -r . ;;
logrotate)
    printf '"%s" {\n rotate 3\n size 1\n compress\n}\n' "$PWD/log/zoo.log" > "$PROGRAM_TEMP/rotate.conf"
    logrotate -s "$PROGRAM_TEMP/rotate.state" "$PROGRAM_TEMP/rotate.conf" ;;
rclone) rclone -q copy "$PROGRAM_TEMP/new" copied ;;
uv) python3 -m uv -q --offline pip install --no-deps --no-cache --target site "$PROGRAM_TEMP/zoo_pkg-1-py3-none-any.whl" ;;
go)
    proxy="file://$(go env GOMODCACHE)/cache/download"
    GOPROXY="$proxy" GONOSUMDB='*' GOFLAGS=-modcacherw GOMODCACHE="$PWD/mod" go mod download github.com/tidwall/match@v1.1.1 ;;
esac
echo "ack $1"
