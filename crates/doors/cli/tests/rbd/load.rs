//! Programs on a mount while an OSD is killed and revived: they get no error, and all acknowledged
//! data is there.

use crate::common::Place;
use crate::{Host, cluster, directory, long, mkfs, script, until, uri};
use kedge_sim::writers::{Writers, verify_after};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// Arguments: `$1` is a directory, `$2` the number of files.
const FS_MARK: &str = r#"
fs_mark -d "$1/fs_mark" -D 4 -t 4 -n "$2" -s 4096 -S 1 -l /dev/null -k
test "$(find "$1/fs_mark" -type f -size 4096c | wc -l)" = $((4 * $2))"#;
/// Arguments: `$1` is a directory, `$2` the duration in seconds. dbench continues after errors.
const DBENCH: &str = r#"
mkdir "$1/dbench"
# dbench prints a warning when it shares semaphores with another dbench, and goes on.
out=$(dbench -t "$2" -D "$1/dbench" 2 | grep -v 'barrier semaphore')
case $out in *failed*|*ERROR*) echo "$out"; exit 1;; *Throughput*) ;; *) exit 1;; esac"#;
/// Arguments: `$1` is a directory, `$2` the number of transactions.
const SQLITE: &str = r#"
{
  echo '.timeout 120000'
  echo 'PRAGMA journal_mode=wal; PRAGMA synchronous=FULL; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);'
  for k in $(seq "$2"); do echo "INSERT INTO t VALUES ($k, randomblob(900));"; done
} | sqlite3 -batch -bail "$1/db""#;
const SQLITE_CHECK: &str = r#"
test "$(sqlite3 -batch "$1/db" 'PRAGMA integrity_check; SELECT count(*) FROM t;' | tr '\n' ' ')" = "ok $2 ""#;
/// Arguments: `$1` is a directory, `$2` the number of transactions of each of two clients.
/// PostgreSQL does not run as root.
const POSTGRES: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
run=$(mktemp -d); trap 'rm -rf "$run"' EXIT
mkdir "$1/pg"; chown postgres "$1/pg" "$run"
as() { su postgres -s /bin/sh -c "cd /; $1"; }
as "'$bin/initdb' -D '$1/pg' --auth=trust --no-locale" >/dev/null
printf "listen_addresses = ''\nunix_socket_directories = '%s'\nshared_buffers = 16MB\n" "$run" >>"$1/pg/postgresql.conf"
as "'$bin/pg_ctl' -s -w -t 120 -D '$1/pg' -l '$run/log' start"
as "'$bin/pgbench' -q -i -s 1 -h '$run' postgres" 2>/dev/null
as "'$bin/pgbench' -n -c 2 -t $2 -h '$run' postgres" 2>&1 | grep "actually processed: $((2 * $2))/$((2 * $2))"
as "'$bin/pg_ctl' -s -w -t 120 -D '$1/pg' stop""#;
/// Checks that each transaction of pgbench left a row.
const POSTGRES_CHECK: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
run=$(mktemp -d); trap 'rm -rf "$run"' EXIT
chown postgres "$run"
as() { su postgres -s /bin/sh -c "cd /; $1"; }
sed -i "s#^unix_socket_directories.*#unix_socket_directories = '$run'#" "$1/pg/postgresql.conf"
as "'$bin/pg_ctl' -s -w -t 120 -D '$1/pg' -l '$run/log' start"
rows=$(as "psql -qAt -h '$run' -d postgres -c 'select count(*) from pgbench_history'")
as "'$bin/pg_ctl' -s -w -t 120 -D '$1/pg' stop"
test "$rows" = $((2 * $2))"#;

fn has_postgres() -> bool {
    let there = Path::new("/usr/lib/postgresql").exists();
    if !there {
        kedge_base::skip::note("PostgreSQL on RBD: not installed (apt-get install postgresql)");
    }
    there
}

#[test]
fn programs_do_not_notice_that_an_osd_dies() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let (host, dir, uri) = (Host::new(&cluster, "alpha"), directory(&place, "mnt"), uri(&cluster, "load"));
    mkfs(&host, &uri, &["--size", "2G"]);
    host.mount(&dir, &uri, &[]);
    let amounts: [&str; 4] = if long() { ["1000", "60", "3000", "3000"] } else { ["60", "6", "150", "100"] };
    let mut programs = vec![(FS_MARK, amounts[0]), (DBENCH, amounts[1]), (SQLITE, amounts[2])];
    let postgres = has_postgres();
    if postgres {
        programs.push((POSTGRES, amounts[3]));
    }
    let backend = host.backend(&dir);
    let writers = Writers::start(&backend, 2, "writer", 1).unwrap();
    let victim = cluster.osds().pop().unwrap();
    std::thread::scope(|scope| {
        for (text, amount) in &programs {
            let (host, words) = (&host, [dir.as_os_str(), OsStr::new(*amount)]);
            scope.spawn(move || script(host, text, &words));
        }
        until("the writers are at work", || writers.operations() > 50);
        cluster.kill(&victim).unwrap();
        let before = writers.operations();
        std::thread::sleep(Duration::from_secs(2));
        // The programs continue without the OSD.
        until("things move on after the loss of an OSD", || writers.operations() > before + 20);
        cluster.revive(&victim).unwrap();
    });
    let acked = writers.snapshot();
    let begun = writers.stop();
    assert_eq!(begun.errors(), Vec::<&str>::new());
    assert!(acked.fsyncs() > 20, "{} fsyncs", acked.fsyncs());
    host.unmount(&dir);
    host.fsck(&uri);
    host.mount(&dir, &uri, &[]);
    verify_after(&*backend, &acked, &begun).unwrap();
    script(&host, SQLITE_CHECK, &[dir.as_os_str(), OsStr::new(amounts[2])]);
    if postgres {
        script(&host, POSTGRES_CHECK, &[dir.as_os_str(), OsStr::new(amounts[3])]);
    }
    host.unmount(&dir);
}
