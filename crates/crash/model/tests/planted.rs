//! Correct programs, and the same programs with one persistence call removed. Each removal must be
//! found and named, and no correct program accused. Under `posix` every call of the correct
//! programs is needed, which these tests prove.

use kedge_crash::{Disk, DiskFile, MODELS, Model, Report, explore_in_memory};
use std::io::Result;

/// Makes the persistence calls of a program, except one.
struct Syncs {
    skip: Option<usize>,
    done: usize,
    /// The path that the removed call would have persisted.
    skipped: Option<String>,
}

impl Syncs {
    fn file(&mut self, disk: &Disk, path: &str) -> Result<()> {
        self.done += 1;
        if self.skip == Some(self.done - 1) {
            self.skipped = Some(path.to_owned());
            return Ok(());
        }
        disk.sync(path)
    }
}

type Judge = fn(&Disk, &[&str], usize) -> std::result::Result<(), String>;

struct Program {
    name: &'static str,
    /// Makes the state of the disk at the start of the program.
    before: fn(&Disk, usize) -> Result<()>,
    run: fn(&Disk, &mut Syncs, usize) -> Result<()>,
    judge: Judge,
    calls: usize,
}

fn text(word: &str, size: usize) -> Vec<u8> {
    word.bytes().cycle().take(size).collect()
}

fn write(disk: &Disk, path: &str, bytes: &[u8]) -> Result<DiskFile> {
    let file = disk.create(path)?;
    file.write_at(0, bytes)?;
    Ok(file)
}

fn told(disk: &[&str], what: &str) -> bool {
    disk.contains(&what)
}

fn expect(what: &str, holds: bool) -> std::result::Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// The program replaces a file.
const REPLACE: Program = Program {
    name: "replace",
    before: |disk, size| write(disk, "doc", &text("old", size)).map(|_| ()),
    run: |disk, syncs, size| {
        write(disk, "doc.tmp", &text("new", size))?;
        syncs.file(disk, "doc.tmp")?;
        disk.rename("doc.tmp", "doc")?;
        syncs.file(disk, "")?;
        disk.tell("new");
        Ok(())
    },
    judge: |disk, said, size| {
        let found = disk.read("doc").map_err(|e| e.to_string())?;
        let (is_old, is_new) = (found == text("old", size), found == text("new", size));
        expect("doc is old or new, and new if so told", is_new || is_old && !told(said, "new"))
    },
    calls: 2,
};

/// The program begins a log and appends to it.
const LOG: Program = Program {
    name: "log",
    before: |_, _| Ok(()),
    run: |disk, syncs, size| {
        let log = disk.create("log")?;
        log.append(&text("a", size))?;
        syncs.file(disk, "log")?;
        syncs.file(disk, "")?;
        disk.tell("a");
        log.append(&text("b", size))?;
        syncs.file(disk, "log")?;
        disk.tell("b");
        Ok(())
    },
    judge: |disk, said, size| {
        let found = disk.read("log").unwrap_or_default();
        expect("a", !told(said, "a") || found.starts_with(&text("a", size)))?;
        expect("b", !told(said, "b") || found[size..] == text("b", size))
    },
    calls: 3,
};

/// The program changes two pages of a file in place. The old contents are in a journal, which is
/// valid while it exists and is complete.
const JOURNAL: Program = Program {
    name: "journal",
    before: |disk, _| write(disk, "db", &[b'o'; 8192]).map(|_| ()),
    run: |disk, syncs, _| {
        let mut journal = vec![b'o'; 8192];
        journal.extend_from_slice(b"end");
        write(disk, "journal", &journal)?;
        syncs.file(disk, "journal")?;
        syncs.file(disk, "")?;
        let db = disk.open("db")?;
        db.write_at(0, &[b'n'; 4096])?;
        db.write_at(4096, &[b'n'; 4096])?;
        syncs.file(disk, "db")?;
        disk.remove("journal")?;
        syncs.file(disk, "")?;
        disk.tell("new");
        Ok(())
    },
    judge: |disk, said, _| {
        let journal = disk.read("journal").unwrap_or_default();
        if journal.len() == 8195 && journal.ends_with(b"end") && !journal.contains(&0) {
            disk.open("db").and_then(|db| db.write_at(0, &journal[..8192])).map_err(|e| e.to_string())?;
        }
        let db = disk.read("db").map_err(|e| e.to_string())?;
        let (is_old, is_new) = (db == [b'o'; 8192], db == [b'n'; 8192]);
        expect("db is old or new, and new if so told", is_new || is_old && !told(said, "new"))
    },
    calls: 4,
};

/// The program makes a file in a new directory.
const DIRECTORY: Program = Program {
    name: "directory",
    before: |_, _| Ok(()),
    run: |disk, syncs, size| {
        disk.create_dir("dir")?;
        write(disk, "dir/file", &text("x", size))?;
        syncs.file(disk, "dir/file")?;
        syncs.file(disk, "dir")?;
        syncs.file(disk, "")?;
        disk.tell("there");
        Ok(())
    },
    judge: |disk, said, size| {
        expect("dir/file", !told(said, "there") || disk.read("dir/file").is_ok_and(|f| f == text("x", size)))
    },
    calls: 3,
};

/// The program writes a table, and then a manifest that names it.
const MANIFEST: Program = Program {
    name: "manifest",
    before: |disk, _| write(disk, "manifest", b"none").map(|_| ()),
    run: |disk, syncs, size| {
        write(disk, "table", &text("rows", size))?;
        syncs.file(disk, "table")?;
        syncs.file(disk, "")?;
        write(disk, "manifest.tmp", b"table")?;
        syncs.file(disk, "manifest.tmp")?;
        disk.rename("manifest.tmp", "manifest")?;
        syncs.file(disk, "")?;
        disk.tell("table");
        Ok(())
    },
    judge: |disk, said, size| match disk.read("manifest").map_err(|e| e.to_string())?.as_slice() {
        b"none" => expect("the manifest is old, though told", !told(said, "table")),
        b"table" => expect("the table is whole", disk.read("table").is_ok_and(|t| t == text("rows", size))),
        other => Err(format!("a manifest of {} strange bytes", other.len())),
    },
    calls: 4,
};

const PROGRAMS: [Program; 5] = [REPLACE, LOG, JOURNAL, DIRECTORY, MANIFEST];
/// Sizes of a file in bytes: less than one page, and more than two.
const SIZES: [usize; 2] = [100, 10_000];

fn explore(program: &Program, skip: Option<usize>, size: usize, model: Model) -> (Report, Syncs) {
    let disk = Disk::new();
    (program.before)(&disk, size).unwrap();
    disk.settle();
    let mut syncs = Syncs { skip, done: 0, skipped: None };
    (program.run)(&disk, &mut syncs, size).unwrap();
    assert_eq!(syncs.done, program.calls, "{}", program.name);
    let report = explore_in_memory(&disk.trace(), model, |disk, told| (program.judge)(disk, told, size));
    assert!(report.fails_uncrashed.is_none(), "{} works when nothing crashes", program.name);
    (report, syncs)
}

#[test]
fn no_right_program_is_accused_under_any_model() {
    for program in &PROGRAMS {
        for (size, model) in SIZES.into_iter().flat_map(|s| MODELS.map(|m| (s, m))) {
            let (report, _) = explore(program, None, size, model);
            assert!(!report.failed(), "{} {size} {}: {:#?}", program.name, model.name, report.failures);
            assert!(report.outcome.unreached == 0 && report.outcome.states > 3, "{:?}", report.outcome);
        }
    }
}

#[test]
fn each_missing_call_is_caught_and_named() {
    let posix = Model::by_name("posix").unwrap();
    let mut planted = 0;
    for program in &PROGRAMS {
        for skip in 0..program.calls {
            let (report, syncs) = explore(program, Some(skip), 10_000, posix);
            let path = syncs.skipped.expect("a call was left out");
            assert!(report.failed(), "{} without call {skip}, fsync({path:?}), passes", program.name);
            let wanted = if path.is_empty() { "." } else { &path };
            let named =
                report.failures.iter().flat_map(|f| &f.fixes).any(|f| f.path == wanted && f.failing == 0);
            assert!(named, "{} without fsync({path:?}): {:#?}", program.name, report.failures);
            planted += 1;
        }
    }
    assert!(planted >= 10, "{planted} gaps");
}
