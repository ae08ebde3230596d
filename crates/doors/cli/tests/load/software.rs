//! Common software on the mount: a database server that is killed or loses its file system, a
//! build.
//!
//! With `KEDGE_LONG=1` (`cargo xtask test --long`) PostgreSQL is also killed, and forked more
//! often.

use crate::common::postgres::Postgres;
use crate::common::{Place, kill, long, needs_fuse, output_of, tool, until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const NEEDS_ROOT: &str = "only root can run programs as other users and lay files over /etc";
/// The number of acknowledged inserts before a kill.
const INSERTS: usize = 400;

/// Inserts rows one by one until `INSERTS` have been acknowledged, and then calls `end`, which ends
/// the server. Returns the ids that were acknowledged before the end of the server.
fn insert_until_killed(db: &Postgres<'_>, from: u64, end: impl FnOnce()) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let mut end = Some(end);
    insert(db, from, &mut |id| {
        acknowledged.push(id);
        if acknowledged.len() == INSERTS {
            end.take().unwrap()();
        }
    });
    assert!(end.is_none(), "only {} inserts were acknowledged", acknowledged.len());
    acknowledged
}

/// Inserts rows one by one until the server ends. Passes the id of each acknowledged row to
/// `acknowledged`.
fn insert(db: &Postgres<'_>, from: u64, acknowledged: &mut dyn FnMut(u64)) {
    let mut command = db.command("psql");
    command.args(["-XAtq", "-d", "postgres"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut psql = command.spawn().unwrap();
    let mut input = psql.stdin.take().unwrap();
    let feed = kedge_base::spawn_named("inserts", move || {
        for id in from..from + 1_000_000 {
            let text = "x".repeat((id % 300) as usize);
            // This write fails after psql has lost its server.
            if writeln!(input, "insert into t values ({id}, '{text}') returning id;").is_err() {
                return;
            }
        }
    })
    .unwrap();
    for line in BufReader::new(psql.stdout.take().unwrap()).lines() {
        acknowledged(line.unwrap().parse().unwrap());
    }
    // psql ends when its server or its input ends.
    let _ = psql.kill();
    psql.wait().unwrap();
    feed.join().unwrap();
}

#[test]
fn postgres_keeps_what_it_acknowledged() {
    if !long() {
        kedge_base::skip::note("PostgreSQL runs with KEDGE_LONG=1");
        return;
    }
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 512M disk.kedge mnt");
    let db = Postgres::new(&place);
    let mut server = db.start();
    db.sql("create table t (id bigint primary key, text text)");
    let mut kept: Vec<u64> = Vec::new();
    for round in 0..6u64 {
        let from = round * 1_000_000;
        let acknowledged = insert_until_killed(&db, from, || match round % 2 {
            0 => server.kill_9(),
            _ => {
                kill(&place, "mnt");
                server.kill_9();
            }
        });
        kept.extend(acknowledged);
        // The server's children notice its end by themselves.
        until_free(&place);
        if round % 2 == 1 {
            place.run("mount disk.kedge mnt").ok();
        }
        server = db.start();
        let have: std::collections::BTreeSet<u64> =
            db.sql("select id from t").lines().map(|id| id.parse().unwrap()).collect();
        let lost: Vec<_> = kept.iter().filter(|id| !have.contains(id)).collect();
        assert!(lost.is_empty(), "round {round}: {} of {} are lost: {lost:?}", lost.len(), kept.len());
    }
    println!("{} inserts were acknowledged, and all are there", kept.len());
    db.run("pg_ctl", &["stop", "-m", "fast"]);
    server.0.wait().unwrap();
    let checked = db.run("pg_checksums", &["--check"]);
    assert!(checked.contains("Bad checksums:  0"), "{checked}");
    place.unmount_and_check("disk.kedge");
}

/// A server is forked while it works: a hundred times with `KEDGE_LONG=1`, otherwise a few times if
/// PostgreSQL is installed. Each fork recovers, and has all rows that were acknowledged before the
/// fork began.
#[test]
fn postgres_is_forked_while_it_works() {
    let long = long();
    let forks = if long { 100 } else { 3 };
    if !long && !std::path::Path::new("/usr/lib/postgresql").exists() {
        kedge_base::skip::note("PostgreSQL is not installed (apt-get install postgresql)");
        return;
    }
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 2G disk.kedge mnt");
    let mut db = Postgres::new(&place);
    let mut server = db.start();
    db.sql("create table t (id bigint primary key, text text)");
    let rows = AtomicU64::new(0);
    let mut least = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| insert(&db, 1, &mut |id| rows.store(id, SeqCst)));
        for n in 0..forks {
            let before = rows.load(SeqCst);
            until("rows are inserted", || rows.load(SeqCst) > before + 5);
            least.push(rows.load(SeqCst));
            place.run(&format!("fork mnt mnt/fork{n}")).ok();
        }
        server.kill_9();
    });
    until_free(&place);
    println!("{} rows were acknowledged before the last of {forks} forks", least[forks - 1]);
    for (n, least) in least.into_iter().enumerate() {
        // Recover the forks one after another under the same name, because each recovery takes
        // space.
        fs::rename(place.path(&format!("mnt/fork{n}")), place.path("mnt/now")).unwrap();
        db.data = "mnt/now/db";
        let mut server = db.start();
        let found = db.sql("select count(*), min(id), max(id) from t");
        let of: Vec<u64> = found.trim().split('|').map(|n| n.parse().unwrap()).collect();
        assert!(of[0] >= least, "fork {n}: {found}, {least} rows were acknowledged");
        assert_eq!((of[1], of[2]), (1, of[0]), "fork {n}: {found}");
        db.run("pg_ctl", &["stop", "-m", "fast"]);
        server.0.wait().unwrap();
        let checked = db.run("pg_checksums", &["--check"]);
        assert!(checked.contains("Bad checksums:  0"), "{checked}");
        place.run("snapshot delete mnt/now").ok();
    }
    place.unmount_and_check("disk.kedge");
}

/// Waits until no process of the killed server has the cluster open.
fn until_free(place: &Place) {
    let db = place.path("mnt/db").display().to_string();
    until("the processes of the server have ended", || {
        let processes =
            fs::read_dir("/proc").unwrap().filter_map(|e| fs::read_link(e.ok()?.path().join("cwd")).ok());
        !processes.into_iter().any(|cwd| cwd.display().to_string().starts_with(&db))
    });
}

/// The same cargo that builds this test builds a crate on the mount.
#[test]
fn cargo_builds_a_crate() {
    needs_fuse!();
    let place = Place::after("mount --create 256M disk.kedge mnt");
    let src = place.path("mnt/hello/src");
    fs::create_dir_all(&src).unwrap();
    fs::write(
        place.path("mnt/hello/Cargo.toml"),
        "[package]\nname = \"hello\"\nedition = \"2021\"\n[workspace]\n",
    )
    .unwrap();
    fs::write(src.join("main.rs"), "mod part;\nfn main() { println!(\"{}\", part::two() + 1) }\n").unwrap();
    let build = |part: &str| {
        fs::write(src.join("part.rs"), part).unwrap();
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(place.path("mnt/hello")).args(["run", "--offline", "--quiet"]);
        // Build in the crate's own target directory, which is on the mount.
        command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        let out = output_of(command).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(build("pub fn two() -> i32 { 2 }\n"), "3\n");
    // cargo detects by file times which parts have changed.
    place.remount("disk.kedge", "");
    assert_eq!(build("pub fn two() -> i32 { 40 + 1 }\n"), "42\n");
    assert!(place.path("mnt/hello/target/debug/hello").exists());
    place.unmount_and_check("disk.kedge");
}

/// This workspace is built on the mount, and again after a kill of the serving process.
#[test]
fn cargo_builds_this_workspace() {
    needs_fuse!();
    if !long() {
        return kedge_base::skip::note("this workspace is built with KEDGE_LONG=1");
    }
    let place = Place::after("mount --create 8G disk.kedge mnt");
    fs::create_dir(place.path("mnt/work")).unwrap();
    let mut command = place.command("sh");
    command.env("FROM", concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    command.args(["-ec", "git -C $FROM ls-files -z | tar -C $FROM --null -T - -c | tar -C mnt/work -x"]);
    tool(command, "git");
    let build = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(place.path("mnt/work")).args(["build", "--offline", "--locked", "-p", "kedge"]);
        command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        let out = output_of(command).unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        let mut built = Command::new(place.path("mnt/work/target/debug/kedge"));
        built.arg("--version");
        assert!(output_of(built).unwrap().stdout.starts_with(b"kedge "));
        said
    };
    assert!(build().contains("Compiling kedgefs "));
    // cargo finds only complete files, and builds the others again.
    kill(&place, "mnt");
    place.run("mount disk.kedge mnt").ok();
    println!("after the kill: {}", build().trim());
    place.remount("disk.kedge", "");
    assert!(!build().contains("Compiling "), "nothing has changed");
    place.unmount_and_check("disk.kedge");
}
