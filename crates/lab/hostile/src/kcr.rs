//! A foreign recording of `kedge crash` is read, searched, explained, reported, and materialised.
//!
//! An input is a file. It is read as it is, and with corrected checksums, since mutations break the
//! checksums.

use crate::drive::{Target, outcome, words_of};
use kedge_base::is_acted_upon;
use kedge_crash::kcr::{self, Loaded, RECORD_MAX};
use kedge_crash::report::{Rendered, Told};
use kedge_crash::{Budget, Campaign, Checker, FilesChecker, History, MODELS, Model, Pick, Recipe, check};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub const TARGET: Target = Target {
    name: "kcr",
    run,
    words: &[
        b"..",
        b"../out/planted",
        b"/",
        b"a/b",
        b"\0",
        b"\x1b[2J",
        b"<script>",
        b"]]>",
        b"\xc2\x9b",
        b"\xe2\x80\xae",
        b"user.a",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
    len_max: 6000,
};

/// Limit of states of one search.
const STATES: u64 = 30;
/// One of this many recordings is searched, since the search takes most of the time.
const SEARCHED: u64 = 4;
/// Limit of events. A longer recording takes long and reaches no other code.
const EVENTS_MAX: usize = 300;
const HEAD: usize = 16;

fn run(input: &[u8]) -> u64 {
    let raw = kcr::read(input);
    match kcr::read(&sealed(input)[..]) {
        Ok(loaded) => outcome((words_of(&format!("{:?}", raw.err())), use_recording(&loaded))),
        Err(e) => outcome(words_of(&e.to_string())),
    }
}

/// The input with a correct header and correct checksums, up to the first record whose length is
/// impossible.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    bytes.resize(bytes.len().max(HEAD), 0);
    bytes[..8].copy_from_slice(b"KEDGEKCR");
    bytes[8..12].copy_from_slice(&kcr::VERSION.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..12]);
    bytes[12..HEAD].copy_from_slice(&sum.to_le_bytes());
    let mut at = HEAD;
    while at + 8 <= bytes.len() {
        let len = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        if len > RECORD_MAX || at + 8 + len > bytes.len() {
            break;
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[at..at + 4]), &bytes[at + 8..at + 8 + len]);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        at += 8 + len;
    }
    bytes
}

fn use_recording(loaded: &Loaded) -> u64 {
    let trace = &loaded.trace;
    if trace.events.len() > EVENTS_MAX {
        return 0;
    }
    let kinds: Vec<_> = trace.events.iter().map(|e| (e.call.name(), e.ok())).take(12).collect();
    let model = MODELS[trace.events.len() % MODELS.len()];
    make(loaded, model);
    // Whether the search runs depends only on the input, so that a find is repeatable.
    if !outcome(format!("{:?}", trace.events)).is_multiple_of(SEARCHED) {
        return outcome((kinds, trace.events.len().min(30)));
    }
    search(loaded, model);
    outcome((kinds, trace.events.len().min(30)))
}

/// Searches the states, explains the finds, and writes every kind of report.
fn search(loaded: &Loaded, model: Model) {
    let trace = &loaded.trace;
    let checker = FilesChecker::new(trace);
    let budget = Budget { states: Some(STATES), ..Budget::default() };
    let report = Campaign { trace, model, checker: &checker as &dyn Checker, budget, hear: None }.run();
    let told = Told { report: &report, trace, name: "run.kcr", checker: "--check-files", cut: None };
    for text in [told.text(), told.json_text(), told.html(), told.junit()] {
        let bad = text.chars().find(|c| is_acted_upon(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(bad, None, "a terminal would act upon the report: {text:?}");
    }
    assert!(!told.html().contains("<script") && !told.junit().contains("<script"), "unescaped markup");
}

/// Materialises a state. No file of it may be outside of its directory.
fn make(loaded: &Loaded, model: Model) {
    let top = tempfile::tempdir().expect("a directory");
    let (place, out) = (top.path().join("place"), top.path().join("out"));
    for dir in [&place, &out] {
        std::fs::create_dir(dir).expect("a directory");
    }
    let history = History::new(&loaded.trace, model);
    let state = history.state(&Recipe::new(*history.points().end(), Pick::All));
    // This machine's file system may refuse names or sizes of a state. Such an error is no find.
    let _ = check::materialise(&state, &place);
    let names = |dir: &Path| std::fs::read_dir(dir).expect("readable").count();
    assert_eq!((names(top.path()), names(&out)), (2, 0), "files lie outside of the directory");
    privileged(&place);
}

fn privileged(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        let kind = meta.file_type();
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "a file of kind {kind:?}");
        assert_eq!(meta.mode() & 0o6000, 0, "a file with set-id bits");
        if kind.is_dir() {
            privileged(&entry.path());
        }
    }
}
