# What a program has after its restart, which `explore --infer` compares. $1: the program.
case "$1" in
doc) test ! -e doc || cksum < doc ;;
sqlite) sqlite3 t.db 'select id, hex(v) from t order by id' ;;
git)
    git -c safe.directory='*' log --format='%H %s' || exit
    git -c safe.directory='*' fsck --full --no-dangling > /dev/null
    ;;
dpkg)
    dpkg-query --admindir=var/lib/dpkg -W -f '${Package} ${db:Status-Status}\n' || exit
    for name in one two; do test ! -e opt/zoo/$name || cksum opt/zoo/$name; done
    ;;
pip) PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=lib python3 -c 'import hashlib, zoo_pkg; print(hashlib.sha256(zoo_pkg.TEXT.encode()).hexdigest())' ;;
npm) node -e 'console.log(require("./node_modules/zoo-pkg"))' ;;
*) python3 "$PROGRAMS/kv-show.py" "$1" ;;
esac
