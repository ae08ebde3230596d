# What the program $1 had before is whole, and so is what it has promised.
case $1 in
sort) test "$(sort -n lines | md5sum)" = "$(seq 1001 3000 | md5sum)" || { echo "lines are lost: $(wc -l < lines) left"; exit 1; } ;;
zip)
    unzip -tqq zoo.zip > out 2>&1 || { echo "the archive is damaged: $(tail -1 out)"; exit 1; }
    test "$KEDGE_ACKED_COUNT" = 0 || unzip -l zoo.zip | grep -q 'new/3$' || { echo "the new member is not there"; exit 1; } ;;
useradd)
    for f in passwd shadow group gshadow; do
        grep -q '^root:' etc/$f || { echo "etc/$f has no root: $(wc -c < etc/$f) bytes"; exit 1; }
        tr -d '\0' < etc/$f | cmp -s - etc/$f || { echo "etc/$f holds zeros"; exit 1; }
        test "$KEDGE_ACKED_COUNT" = 0 || grep -q '^zoo1:' etc/$f || { echo "the user is not in etc/$f"; exit 1; }
    done ;;
ldconfig) ldconfig -r . -p 2> out | grep -q 'libc.so.6' || { echo "the cache has no libc: $(cat out) $(wc -c < etc/ld.so.cache) bytes"; exit 1; } ;;
logrotate)
    have=$({ cat log/zoo.log log/zoo.log.1; zcat log/zoo.log.1.gz; } 2> /dev/null | grep -c 'a line of the log')
    test "$have" -ge 2000 || { echo "$have of 2000 lines of the log are left"; exit 1; } ;;
rclone)
    test "$KEDGE_ACKED_COUNT" = 0 && exit 0
    for n in 1 2 3; do test "$(tr -dc $n < copied/$n | wc -c)" = 9000 || { echo "file $n was copied and is not whole"; exit 1; }; done ;;
uv)
    test "$KEDGE_ACKED_COUNT" = 0 && exit 0
    PYTHONPATH="$PWD/site" python3 -c 'import zoo_pkg; assert len(zoo_pkg.TEXT) == 9000' 2> out || { tail -1 out; exit 1; } ;;
go)
    test "$KEDGE_ACKED_COUNT" = 0 && exit 0
    unzip -p mod/cache/download/github.com/tidwall/match/@v/v1.1.1.zip '*/match.go' > match.go 2> out &&
        cmp -s match.go mod/github.com/tidwall/match@v1.1.1/match.go || { echo "the module is not as it was downloaded"; exit 1; } ;;
esac
