# LevelDB 1.11, whose source is a part of an old package of npm; the package's own build is not used.
set -e
test -x "$BIN/leveldb-old" && exit 0
npm pack --silent leveldown@0.8.0 > /dev/null
tar xzf leveldown-0.8.0.tgz package/deps/leveldb
cd package/deps/leveldb/leveldb-1.11.0
sources=$(ls db/*.cc table/*.cc util/*.cc port/port_posix.cc | grep -v -e _test -e _bench -e leveldb_main -e testutil -e testharness -e env_boost -e _win)
g++ -std=gnu++11 -O1 -w -DOS_LINUX -DLEVELDB_PLATFORM_POSIX -DLEVELDB_ATOMIC_PRESENT -I. -Iinclude \
    ../../../../main.cc $sources -o "$BIN/leveldb-old" -lpthread
