#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::{Campaign, Report};
use crate::disk::Disk;
use crate::model::Model;
use crate::run::Budget;

/// Explores the recording of `run` with one of the checkers under `posix`.
pub fn explore(name: &str, files: &[&str], run: impl FnOnce(&Disk)) -> Report {
    let disk = Disk::new();
    run(&disk);
    let trace = disk.trace();
    let checker = checker(name, files, &trace).unwrap();
    let model = Model::by_name("posix").unwrap();
    Campaign { trace: &trace, model, checker: &checker, budget: Budget::default(), hear: None }.run()
}

pub fn checker(name: &str, files: &[&str], trace: &Trace) -> Result<ShippedChecker, String> {
    let patterns = files.iter().map(|text| Pattern::new(text)).collect();
    ShippedChecker::new(Shipped::by_name(name).unwrap(), trace, patterns, None, None)
}

/// The message of the first failure.
#[track_caller]
pub fn found(report: &Report) -> &str {
    assert!(report.fails_uncrashed.is_none(), "{:?}", report.fails_uncrashed);
    assert!(report.failed(), "{:?}", report.outcome);
    &report.outcome.failures[0].message
}

#[track_caller]
pub fn passes(report: &Report) {
    assert!(report.passed() && report.outcome.is_whole() && report.outcome.states > 3, "{report:#?}");
}

/// Replaces a file by a rename, with or without the fsync of its bytes.
fn replace(disk: &Disk, name: &str, bytes: &[u8], is_synced: bool) {
    let temp = format!("{name}.tmp");
    disk.create(&temp).unwrap().write_at(0, bytes).unwrap();
    if is_synced {
        disk.sync(&temp).unwrap();
    }
    disk.rename(&temp, name).unwrap();
    disk.sync("").unwrap();
    disk.tell(name);
}

/// A header of an old archive, with checksum and size.
fn member(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    header[148..156].copy_from_slice(b"        ");
    header[156] = b'0';
    let sum: u64 = header.iter().map(|b| u64::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut all = [&header[..], bytes].concat();
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

fn archive() -> Vec<u8> {
    [member("a", &[b'a'; 5000]), member("b", b"short"), vec![0; 1024]].concat()
}

#[test]
fn a_file_that_is_replaced_without_fsync_is_found_and_one_with_it_is_not_accused() {
    let old: [(&str, &str, Vec<u8>); 4] = [
        ("json", "settings.json", format!("{{\"list\": [{}1]}}", "0, ".repeat(3000)).into_bytes()),
        ("toml", "settings.toml", b"[section]\nword = 'text'\nlist = [1, 2]\n".to_vec()),
        ("yaml", "conf.yml", b"list: [1, 2]\nword: text\n".to_vec()),
        ("tar", "backup.tar", archive()),
    ];
    for (name, file, bytes) in &old {
        passes(&explore(name, &[], |disk| replace(disk, file, bytes, true)));
        let report = explore(name, &[], |disk| replace(disk, file, bytes, false));
        let said = found(&report);
        assert!(said.starts_with(&format!("{file}: ")), "{said}");
        let fixes: Vec<&str> = report.failures.iter().flat_map(|f| &f.fixes).map(|f| &f.path[..]).collect();
        assert_eq!(fixes, [&format!("{file}.tmp")[..]], "{:#?}", report.failures);
    }
}

#[test]
fn a_file_that_was_promised_must_be_there() {
    let save = |disk: &Disk, is_synced: bool| {
        disk.create("a.json").unwrap().write_at(0, b"[1]").unwrap();
        disk.sync("a.json").unwrap();
        if is_synced {
            disk.sync("").unwrap();
        }
        disk.tell("there");
    };
    // Before the promise the file may be missing. It may not be empty: writing a file under its
    // final name is itself a bug.
    let report = explore("json", &[], |disk| save(disk, true));
    assert!(found(&report).starts_with("a.json: no JSON: "), "{}", found(&report));
    let report = explore("json", &[], |disk| save(disk, false));
    let is_missing = |f: &crate::run::Failure| f.message == "a.json is missing, though it was promised";
    assert!(report.outcome.failures.iter().any(is_missing), "{:?}", report.outcome.failures);

    // A file that the program removes later must be there until then.
    let report = explore("json", &[], |disk| {
        save(disk, false);
        disk.remove("a.json").unwrap();
        disk.sync("").unwrap();
        disk.tell("removed");
    });
    assert!(report.outcome.failures.iter().any(is_missing), "{:?}", report.outcome.failures);

    // A file from the start needs no promise, and a file that the program removes may be missing.
    let remove = |disk: &Disk| {
        disk.create("a.json").unwrap().write_at(0, b"[1]").unwrap();
        disk.settle();
        disk.create("other").unwrap().write_at(0, b"x").unwrap();
        disk.sync("other").unwrap();
        disk.remove("a.json").unwrap();
    };
    passes(&explore("json", &[], remove));
}

#[test]
fn names_of_files_narrow_and_widen_what_is_judged() {
    let run = |disk: &Disk| {
        replace(disk, "good.conf", b"{}", true);
        replace(disk, "bad.json", b"{}", false);
    };
    assert!(found(&explore("json", &[], run)).starts_with("bad.json: "));
    passes(&explore("json", &["*.conf"], run));
    assert!(explore("json", &["*.conf", "*.json"], run).failed());
}

/// A temporary file that exists at no promise and not at the end is no subject.
#[test]
fn files_that_nobody_was_promised_are_not_judged() {
    let run = |disk: &Disk| {
        replace(disk, "a.json", b"{}", true);
        disk.create("draft.json").unwrap().write_at(0, b"{").unwrap();
        disk.remove("draft.json").unwrap();
        disk.sync("").unwrap();
    };
    passes(&explore("json", &[], run));
}

#[test]
fn a_recording_with_nothing_to_judge_is_refused() {
    let disk = Disk::new();
    disk.create("file").unwrap().write_at(0, b"SQLite").unwrap();
    for row in SHIPPED {
        let why = checker(row.name, &[], &disk.trace()).err().unwrap();
        assert!(why.contains(&format!("--checker {} has nothing to judge", row.name)), "{why}");
    }
}

/// Appends lines to a ledger and promises each, with or without its fsync.
fn append(disk: &Disk, lines: &[&str], is_synced: bool) {
    let ledger = disk.create("ledger").unwrap();
    disk.sync("").unwrap();
    for line in lines {
        ledger.append(format!("{line}\n").as_bytes()).unwrap();
        if is_synced {
            ledger.sync_data().unwrap();
        }
        disk.tell(&format!("saved {line}"));
    }
}

#[test]
fn a_promised_line_must_be_in_the_ledger() {
    let lines = ["a=1", "b=a value of words", "a=2"];
    passes(&explore("ledger", &["ledger"], |disk| append(disk, &lines, true)));
    let report = explore("ledger", &["ledger"], |disk| append(disk, &lines, false));
    assert!(found(&report).contains("not in the ledger: "), "{}", found(&report));
}

/// The file holds only the last value of each key, and is replaced before the new value is
/// promised.
#[test]
fn a_later_value_of_a_key_stands_for_an_earlier_one() {
    let save = |disk: &Disk, n: u32, is_synced: bool| {
        replace_value(disk, n, is_synced);
        disk.tell(&format!("n={n}"));
    };
    passes(&explore("ledger", &["kv"], |disk| (1..4).for_each(|n| save(disk, n, true))));
    let report = explore("ledger", &["kv"], |disk| (1..4).for_each(|n| save(disk, n, false)));
    let messages: Vec<&str> = report.outcome.failures.iter().map(|f| &f.message[..]).collect();
    assert!(messages.contains(&"kv is missing, though it was promised"), "{messages:?}");
    assert!(messages.contains(&"promised, and not in the ledger: n=3"), "{messages:?}");
    // A value that comes back later is no later value before that.
    let again = |is_second_synced: bool| {
        move |disk: &Disk| {
            for (n, is_synced) in [(1, true), (2, is_second_synced), (1, true)] {
                save(disk, n, is_synced);
            }
        }
    };
    passes(&explore("ledger", &["kv"], again(true)));
    let report = explore("ledger", &["kv"], again(false));
    assert_eq!(found(&report), "promised, and not in the ledger: n=2");
    // Two values are saved before both are promised.
    passes(&explore("ledger", &["kv"], |disk| {
        save(disk, 1, true);
        (2..4).for_each(|n| replace_value(disk, n, true));
        (2..4).for_each(|n| disk.tell(&format!("n={n}")));
    }));
}

fn replace_value(disk: &Disk, n: u32, is_synced: bool) {
    disk.create("kv.tmp").unwrap().write_at(0, format!("n={n}").as_bytes()).unwrap();
    disk.sync("kv.tmp").unwrap();
    disk.rename("kv.tmp", "kv").unwrap();
    if is_synced {
        disk.sync("").unwrap();
    }
}

fn tar_of(bytes: &[u8]) -> Result<(), String> {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, bytes).unwrap();
    let state = disk.state();
    let Body::File(file) = &state.find(b"f").unwrap().1.body else { panic!("a file") };
    tar::check(file)
}

#[test]
fn archives_are_whole_or_not() {
    let whole = archive();
    assert_eq!(tar_of(&whole), Ok(()));
    for len in 0..whole.len() {
        assert!(tar_of(&whole[..len]).is_err(), "cut at {len}");
    }
    assert_eq!(tar_of(&[0; 10240]), Err("an archive without a member".to_owned()));
    let mut changed = whole.clone();
    changed[3] ^= 1;
    assert_eq!(tar_of(&changed), Err("the header at 0 has another checksum".to_owned()));
    // A header of zeros inside the archive does not end it.
    let mut torn = whole;
    torn[5632..6144].fill(0);
    assert!(tar_of(&torn).unwrap_err().contains("does not end the archive"));
    // The size fields have values that overflow.
    for size in [&b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"77777777777\0"] {
        let mut huge = member("a", b"x");
        huge[124..136].copy_from_slice(size);
        huge[148..156].fill(b' ');
        let sum: u64 = huge[..512].iter().map(|b| u64::from(*b)).sum();
        huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(tar_of(&huge).unwrap_err().contains("cut off"));
    }
}

#[test]
fn what_is_yaml() {
    let is_yaml = |text: &[u8]| yaml(text).is_ok();
    assert!(is_yaml(b"a: 1\n---\n- b\n") && is_yaml(b"word"));
    for bad in [&b""[..], b"\n\n", b"a: [1, 2", b"a: 'text", b"a: 1\n\0\0\0", b"\xff", b"a: b: c"] {
        assert!(!is_yaml(bad), "{bad:?}");
    }
    // Deeply nested YAML must not overflow the stack.
    assert!(!is_yaml(&b"[".repeat(1 << 20)));
}

/// Sparse files of an exabyte, and many files that are each within the limit, must not use memory.
#[test]
fn huge_files_give_no_verdict() {
    for name in ["json", "toml", "yaml", "ledger"] {
        let (disk, is_ledger) = (Disk::new(), name == "ledger");
        for n in 0..if is_ledger { 1000 } else { 1 } {
            let file = disk.create(&format!("f{n}.{name}")).unwrap();
            file.set_len(if is_ledger { BYTES_MAX } else { 1 << 60 }).unwrap();
        }
        disk.tell("saved");
        let trace = disk.trace();
        let files: &[&str] = if is_ledger { &["*.ledger"] } else { &[] };
        let checker = checker(name, files, &trace).unwrap();
        let recipe = crate::recipe::Recipe::new(trace.events.len() as u32, crate::recipe::Pick::All);
        let (state, told) = (disk.state(), &[][..]);
        let verdict =
            checker.check(&Case { recipe: &recipe, state: &state, told, moment: 0, within: "", job: 0 });
        assert!(matches!(&verdict, Verdict::Broken(why) if why.contains("more than")), "{verdict:?}");
    }
}
