// Puts keys with sync, each promised when Put has returned, or checks that they are there.
// Arguments: run DIR COUNT [BYTES], check DIR COUNT [BYTES]. With BYTES, corruption is reported and
// not passed over.
#include <cstdio>
#include <cstdlib>
#include <string>
#include "leveldb/db.h"

static std::string key(int n) { return "key" + std::to_string(n); }
static size_t bytes = 900;
static std::string value(int n) { return std::string(bytes, 'a' + n); }

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  leveldb::DB* db;
  leveldb::Options options;
  options.create_if_missing = true;
  if (argc > 4 && *argv[4]) {
    bytes = atoi(argv[4]);
    options.paranoid_checks = true;
  }
  leveldb::Status status = leveldb::DB::Open(options, argv[2], &db);
  if (!status.ok()) {
    printf("does not open: %s\n", status.ToString().c_str());
    return 1;
  }
  bool runs = std::string(argv[1]) == "run";
  int count = runs ? atoi(argv[3]) : atoi(getenv("KEDGE_ACKED_COUNT"));
  for (int n = 0; n < count; n++) {
    leveldb::WriteOptions sync;
    sync.sync = true;
    std::string found;
    status = runs ? db->Put(sync, key(n), value(n)) : db->Get(leveldb::ReadOptions(), key(n), &found);
    if (!status.ok() || (!runs && found != value(n))) {
      printf("%s: %s\n", key(n).c_str(), status.ToString().c_str());
      return 1;
    }
    if (runs) {
      printf("ack %d\n", n);
      fflush(stdout);
    }
  }
  // Without a close: power fails while a program runs.
  _Exit(0);
}
