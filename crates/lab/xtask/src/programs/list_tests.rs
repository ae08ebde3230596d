#![allow(clippy::unwrap_used)]

use super::*;
use crate::programs::rows::ROWS;

const HUNT_TABLE: &str = "\
| program | model | version | settings | verdict | states | replayed | s |
|---|---|---|---|---|---|---|---|
| rsync | ext4 | 3.5.0 | --fsync | shown | 80 | fails on ext4, alone | 42 |
| Redis, ACL SAVE (published) | ext4 | 7.0.15 | aclfile | found again | 80+ |  | 17 |
| MongoDB | ext4 | | j: true | not run: no package | | | |
";
const ZOO_TABLE: &str = "\
| program | model | documented | found | states | s |
|---|---|---|---|---|---|
| LMDB, default | ext4 | passes | passes | 178 | 34.7 |
| LMDB, default | posix | passes | passes | 272 | 63.3 |
| LMDB, MDB_NOSYNC: sound | posix | fails: `data.mdb` | fails | 600 | 814.6 |
| sled, flush() | ext4 | passes | fails | 600 | 12.6 |
| pip install | ext4 | fails: `zoo_pkg` | fails | 100 | 185.5 |
";

#[test]
fn the_list_has_the_rows_of_both_tables_that_were_run_in_safe_settings() {
    let text = list(HUNT_TABLE, ZOO_TABLE);
    let rows: Vec<&str> = text.lines().skip(4).collect();
    assert_eq!(
        rows,
        [
            format!("| LMDB, default | ext4 | keeps it | {ZOO} |"),
            format!("| LMDB, default | posix | keeps it | {ZOO} |"),
            format!("| pip install | ext4 | loses, as documented | {ZOO} |"),
            format!("| Redis, ACL SAVE (published) | ext4 | found again | {HUNT} |"),
            format!("| rsync | ext4 | shown | {HUNT} |"),
            format!("| sled, flush() | ext4 | fails (model only, see there) | {ZOO} |"),
        ]
    );
    // Each program counts once, whatever its models. A program that was not run does not count.
    assert!(text.starts_with("4 rows of programs of today, and 1 of published faults.\n"), "{text}");
}

#[test]
fn each_name_of_the_safe_settings_is_a_row() {
    for name in IN_SAFE_SETTINGS {
        assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
    }
}
