# Versions of LevelDB whose source is a part of old packages of npm; the packages' own builds are not
# used.
set -e
build() { # the package's version, LevelDB's version, the program
    test -x "$BIN/$3" && return
    npm pack --silent "leveldown@$1" > /dev/null
    mkdir -p "$3"
    tar xzf "leveldown-$1.tgz" -C "$3" package/deps/leveldb
    sources=$(cd "$3/package/deps/leveldb/leveldb-$2" && ls db/*.cc table/*.cc util/*.cc port/port_posix.cc |
        grep -v -e _test -e _bench -e leveldb_main -e leveldbutil -e testutil -e testharness -e env_boost -e _win)
    (cd "$3/package/deps/leveldb/leveldb-$2" &&
        g++ -std=gnu++11 -O1 -w -DOS_LINUX -DLEVELDB_PLATFORM_POSIX -DLEVELDB_ATOMIC_PRESENT -I. -Iinclude \
            ../../../../../main.cc $sources -o "$BIN/$3" -lpthread)
}
build 0.8.0 1.11.0 leveldb-old
build 1.0.7 1.17.0 leveldb-1.17
