//! PostgreSQL with data checksums, while the servers of its file system die.

use crate::common::keeper::{Killer, keeper};
use crate::common::postgres::Postgres;
use crate::common::{Place, needs_fuse};
use crate::deaths_wanted;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(500);

#[test]
fn pgbench_does_not_notice() {
    if std::env::var_os("KEDGE_KEEPER_DEATHS").is_none() {
        return kedge_base::skip::note("PostgreSQL runs where KEDGE_KEEPER_DEATHS is set");
    }
    needs_fuse!(root: "PostgreSQL runs as a user of its own");
    let place = Place::after("mount --create 1G -o keeper disk.kedge mnt");
    let db = Postgres::new(&place);
    let mut server = db.start();
    let seconds = (deaths_wanted() / 2).clamp(20, 600).to_string();
    let killer = Killer::start(&place, EVERY);
    db.run("pgbench", &["-i", "-s", "2", "-q", "postgres"]);
    let said = db.run("pgbench", &["-c", "4", "-j", "2", "-T", &seconds, "postgres"]);
    assert!(said.contains("number of failed transactions: 0 "), "{said}");
    let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
                       (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)";
    assert_eq!(db.sql(sums).trim(), "t|t");
    let deaths = killer.stop();
    println!("{said}{deaths} deaths, keeper: {}", keeper(&place));
    db.run("pg_ctl", &["stop", "-m", "fast"]);
    server.0.wait().unwrap();
    let checked = db.run("pg_checksums", &["--check"]);
    assert!(checked.contains("Bad checksums:  0"), "{checked}");
    place.unmount_and_check("disk.kedge");
}
