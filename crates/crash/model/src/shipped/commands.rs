//! The shell commands of the checkers that need a program. The first argument is the query, the
//! others are the subjects, each with a `./` in front.
//!
//! If a command fails, its exit code is that of the checker, and the last line that it prints is in
//! the report.

/// Opening a database rolls an unfinished transaction back, as the program does when it restarts.
/// Before the first promise the query may name tables that do not exist yet. awk first reads the
/// rows and then the promises.
pub const SQLITE: &str = r#"query=$1; shift
for f; do
  found=$(sqlite3 -batch -init /dev/null "$f" 'PRAGMA integrity_check') || { code=$?; echo "$f: $found"; exit "$code"; }
  test "$found" = ok || { echo "$f: $found"; exit 1; }
done
test -n "$query" && test "$KEDGE_ACKED_COUNT" -gt 0 || exit 0
rows=$(for f; do sqlite3 -batch -init /dev/null "$f" "$query" || exit; done) || exit
printf '%s\n' "$rows" | awk 'NR == FNR { rows[$0]; next }
  $0 != "" && !($0 in rows) { print "promised, and not a row: " $0; missing = 1 }
  END { exit missing }' - "$KEDGE_ACKED_FILE""#;

/// The repository of a state may belong to another user than this process, which Git refuses by
/// default. The variables of a Git command that called this program are removed, since they name
/// another repository.
pub const GIT: &str = r#"shift
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
for f; do
  echo "$f:"
  git -c safe.directory='*' --git-dir="$f" fsck --full --no-progress || exit
done"#;

/// The server is started on a copy of the directory, since it refuses to run as root and needs a
/// directory that belongs to its user. `postmaster.pid` names a process from before the crash; a
/// torn file prevents the start, so it is removed. `pg_dumpall` reads every row.
pub const POSTGRES: &str = r#"query=$1; shift
bin=$(ls -d /usr/lib/postgresql/*/bin/pg_ctl 2> /dev/null | sort -V | tail -n 1)
bin=$(dirname "$(readlink -f "$(command -v "${bin:-pg_ctl}")")")
test -x "$bin/pg_ctl" || { echo "pg_ctl is not installed"; exit 127; }
as() { if test "$(id -u)" = 0; then su postgres -s /bin/sh -c "cd / && $1"; else sh -c "cd / && $1"; fi; }
copy=$(mktemp -d "${TMPDIR:-/tmp}/kedge-postgres-XXXXXX") || exit
stop() { as "'$bin/pg_ctl' -s -w -D '$copy/data' -m immediate stop" > /dev/null 2>&1; rm -rf "$copy/data"; }
trap 'stop; rm -rf "$copy"' EXIT
for f; do
  cp -a "$f" "$copy/data" && rm -f "$copy/data/postmaster.pid" && chmod 700 "$copy/data" || exit
  test "$(id -u)" != 0 || chown -R postgres "$copy" || exit
  as "'$bin/pg_ctl' -s -w -D '$copy/data' -l '$copy/log' -o \"-k '$copy' -c listen_addresses='' -c fsync=off\" start" \
    > /dev/null 2>&1 || { echo "$f: the server does not start"; grep -E 'PANIC|FATAL' "$copy/log" | tail -n 1; exit 1; }
  as "'$bin/pg_dumpall' -h '$copy' > /dev/null" 2>&1 || { echo "$f: the rows cannot be read"; exit 1; }
  if test -n "$query" && test "$KEDGE_ACKED_COUNT" -gt 0; then
    printf '%s\n' "$query" > "$copy/query"
    as "'$bin/psql' -qAt -v ON_ERROR_STOP=1 -h '$copy' -d postgres" < "$copy/query" >> "$copy/rows" || exit
  fi
  stop
done
test -f "$copy/rows" || exit 0
awk 'FILENAME != ARGV[2] { rows[$0]; next }
  $0 != "" && !($0 in rows) { print "promised, and not a row: " $0; missing = 1 }
  END { exit missing }' "$copy/rows" "$KEDGE_ACKED_FILE""#;

/// `mdb_dump` reads every row of the main database and of each database named in it.
pub const LMDB: &str = r#"shift
for f; do
  echo "$f:"
  mdb_dump -n "$f" > /dev/null || exit
  mdb_stat -n -ef "$f" > /dev/null || exit
  names=$(mdb_dump -n -l "$f" 2> /dev/null)
  test -z "$names" || mdb_dump -n -a "$f" > /dev/null || exit
done"#;

/// Opening a store replays its logs, and `scan` reads every row.
pub const ROCKSDB: &str = r#"shift
command -v ldb > /dev/null || { echo "ldb is not installed"; exit 127; }
for f; do
  for word in checkconsistency scan; do
    found=$(ldb --db="$f" "$word" 2>&1 > /dev/null) || { echo "$f: $found" | head -n 1; exit 1; }
  done
done"#;

pub const GZIP: &str = r#"shift
for f; do echo "$f:"; gzip -t < "$f" || exit; done"#;

pub const ZIP: &str = r#"shift
for f; do echo "$f:"; unzip -tqq "$f" || exit; done"#;
