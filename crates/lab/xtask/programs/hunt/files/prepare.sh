# What the programs change: an archive, lines, accounts, a log, a cache of libraries; and a wheel.
set -e
cd "$PROGRAM_FROM"
mkdir -p "$PROGRAM_TEMP/new"
for n in 1 2 3; do head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/new/$n"; done
seq 3000 -1 1001 > lines
(cd "$PROGRAM_TEMP/new"; zip -q "$PROGRAM_FROM/zoo.zip" 1 2)
mkdir -p etc log lib etc/ld.so.conf.d
for f in passwd shadow group gshadow; do cp /etc/$f etc/; done
yes 'a line of the log' | head -2000 > log/zoo.log
cp /lib/x86_64-linux-gnu/libc.so.6 lib/; echo /lib > etc/ld.so.conf
ldconfig -r . 2> /dev/null
sh "$PROGRAMS/pip-prepare.sh"
