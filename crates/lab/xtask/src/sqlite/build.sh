# $1 is the directory of what is built, $2 that of default_vfs.c and files.c. Debian's source package
# has SQLite's tests. The lists of source packages are kept apart from those of the system.
cd "$1"
mkdir -p lists/partial source built
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
echo "deb-src http://deb.debian.org/debian $release main" > sources.list
get() {
    apt-get -q -o Dir::Etc::sourcelist="$1/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$1/lists" -o Dir::Cache="$1" -o APT::Sandbox::User=root "${@:2}"
}
get "$1" update
get "$1" source --download-only sqlite3
tar -xf sqlite3_*.orig.tar.xz --strip-components=1 -C source
# Without posix_fallocate(3) SQLite allocates by writing bytes, which an atomic write forgets when it
# becomes too large.
options="-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE -DSQLITE_EXTRA_INIT=extension_as_default -DHAVE_POSIX_FALLOCATE=1"
cd built
../source/configure --with-tcl="$(dirname "$(find /usr/lib -name tclConfig.sh | head -n 1)")" CFLAGS=-O1
make sqlite3.c OPTS="$options"
make testfixture OPTS="$options" TESTFIXTURE_SRC1="sqlite3.c $2/default_vfs.c"
cc -O1 -I. $options -c sqlite3.c
for program in speedtest1 kvtest; do
    cc -O1 -I. -o "$program" "../source/test/$program.c" sqlite3.o "$2/default_vfs.c" -lpthread -ldl -lm
done
cc -O1 -shared -fPIC -I. -o files.so "$2/files.c"
# The last: with it all is there.
touch ../complete
