//! Tests code on a file system in memory, which no other test sees and which needs no clean-up:
//! `cargo run -p kedgefs --example in_memory`.

use kedgefs::{Dir, FileSystem};
use std::io::{self, BufRead, BufReader, Write};

/// The code under test: appends a line to a journal.
fn note(dir: &Dir, line: &str) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    let how = kedgefs::OpenOptions::new().read(true).write(true).create(true);
    let mut journal = dir.open_with("journal", &how)?;
    journal.seek(SeekFrom::End(0))?;
    writeln!(journal, "{line}")?;
    journal.sync_data()
}

pub fn main() -> io::Result<()> {
    let fs = FileSystem::in_memory(16 << 20)?;
    let root = fs.root();
    note(&root, "first")?;
    note(&root, "second")?;
    let lines: Vec<String> = BufReader::new(root.open("journal")?).lines().collect::<io::Result<_>>()?;
    assert_eq!(lines, ["first", "second"]);

    // A full disk is hard to arrange on a real machine, but easy here.
    let mut ballast = root.create("ballast")?;
    while ballast.write_all(&[1; 1 << 16]).is_ok() {}
    let refused = root.write("more", [2; 1 << 16]).expect_err("the disk is full");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    // The earlier contents are intact.
    assert_eq!(root.read_to_string("journal")?, "first\nsecond\n");
    println!("a journal of {} lines, and a full disk", lines.len());
    Ok(())
}
