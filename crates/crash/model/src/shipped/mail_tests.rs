#![allow(clippy::unwrap_used)]

use super::super::tests::{checker, explore, found, passes};
use super::*;
use crate::disk::Disk;

const MESSAGE: &[u8] = b"From: a@example.org\nSubject: hello\n\ntext\n";

fn long(word: &str) -> Vec<u8> {
    [MESSAGE, word.repeat(3000).as_bytes(), b"\n"].concat()
}

/// Delivers a message as maildir requires: it is written in `tmp` and then renamed.
fn deliver(disk: &Disk, name: &str, bytes: &[u8], syncs: &[&str]) {
    let temp = format!("mail/tmp/{name}");
    disk.create(&temp).unwrap().write_at(0, bytes).unwrap();
    if syncs.contains(&"bytes") {
        disk.sync(&temp).unwrap();
    }
    disk.rename(&temp, &format!("mail/new/{name}")).unwrap();
    if syncs.contains(&"name") {
        disk.sync("mail/new").unwrap();
    }
    disk.tell(name);
}

fn maildir(disk: &Disk) {
    disk.create_dir("mail").unwrap();
    for dir in ["mail/tmp", "mail/new", "mail/cur"] {
        disk.create_dir(dir).unwrap();
    }
    disk.settle();
}

#[test]
fn messages_of_a_maildir_are_whole_and_there_if_promised() {
    let run = |syncs: &'static [&'static str]| {
        move |disk: &Disk| {
            maildir(disk);
            deliver(disk, "1.a", &long("one "), syncs);
            // A message that is read moves to `cur`, with its flags after its name.
            disk.rename("mail/new/1.a", "mail/cur/1.a:2,S").unwrap();
            disk.sync("mail/cur").unwrap();
            disk.sync("mail/new").unwrap();
            deliver(disk, "2.b", &long("two "), syncs);
            // A message that the user removes may be missing.
            disk.remove("mail/new/2.b").unwrap();
            disk.sync("mail/new").unwrap();
            disk.tell("removed");
        }
    };
    passes(&explore("maildir", &[], run(&["bytes", "name"])));
    passes(&explore("maildir", &["mail"], run(&["bytes", "name"])));
    let report = explore("maildir", &[], run(&["name"]));
    // The message may have any of its names in the failing state.
    let said = found(&report).to_string();
    assert!(said.starts_with("mail/") && said.contains("/1.a") && said.contains(": it has "), "{said}");
    let report = explore("maildir", &[], run(&["bytes"]));
    assert_eq!(found(&report), "mail: the message 1.a is missing, though it was promised");
}

/// A message that the user removes at some time must be there until then.
#[test]
fn a_message_that_is_removed_later_is_there_until_then() {
    let run = |syncs: &'static [&'static str]| {
        move |disk: &Disk| {
            maildir(disk);
            deliver(disk, "1.a", &long("one "), syncs);
            disk.tell("2");
            disk.remove("mail/new/1.a").unwrap();
            disk.sync("mail/new").unwrap();
            disk.tell("3");
        }
    };
    passes(&explore("maildir", &[], run(&["bytes", "name"])));
    let report = explore("maildir", &[], run(&["bytes"]));
    assert_eq!(found(&report), "mail: the message 1.a is missing, though it was promised");
}

/// Appends a message to an mbox and promises it.
fn append(disk: &Disk, n: usize, is_synced: bool) {
    let mailbox = if n == 0 { disk.create("mbox").unwrap() } else { disk.open("mbox").unwrap() };
    let text = [b"From a Thu Jan  1 00:00:00 1970\n", &long(&format!("word {n} "))[..], b"\n"].concat();
    mailbox.append(&text).unwrap();
    if is_synced {
        mailbox.sync_data().unwrap();
    }
    if n == 0 {
        disk.sync("").unwrap();
    }
    disk.tell(&n.to_string());
}

#[test]
fn messages_of_an_mbox_are_there_if_promised() {
    let first = |disk: &Disk| {
        append(disk, 0, true);
        disk.settle();
    };
    // Under `strict` a crash can only cut an append, and the appended message may be cut.
    let model = crate::model::Model::by_name("strict").unwrap();
    for (is_synced, is_good) in [(true, true), (false, false)] {
        let disk = Disk::new();
        first(&disk);
        (1..4).for_each(|n| append(&disk, n, is_synced));
        let trace = disk.trace();
        let judge = checker("mbox", &[], &trace).unwrap();
        let budget = crate::run::Budget::default();
        let report = crate::Campaign { trace: &trace, model, checker: &judge, budget, hear: None }.run();
        assert_eq!(report.passed(), is_good, "{:#?}", report.failures);
        if !is_good {
            assert_eq!(found(&report), "mbox: the message is missing, though it was promised");
        }
    }
    // Under `posix` the size may be durable before the bytes.
    let report = explore("mbox", &[], |disk| {
        first(disk);
        (1..4).for_each(|n| append(disk, n, true));
    });
    assert_eq!(found(&report), "mbox: it holds zeros");
}

#[test]
fn an_mbox_is_split_at_lines_that_follow_an_empty_one() {
    let text = b"From a\nX: y\n\nFrom here on it is text?\nFrom b\n\nFrom c\nX: z\n\n";
    let parts: Vec<&[u8]> = split(text).collect();
    assert_eq!(parts, [&b"From a\nX: y"[..], b"From here on it is text?\nFrom b", b"From c\nX: z"]);
    assert_eq!(split(b"").count(), 0);
}

#[test]
fn names_and_headers() {
    assert_eq!(unique(b"new/17.a_b.host:2,S"), b"17.a_b.host");
    assert!(has_header(b"Return-Path: <a>\n") && has_header(b"From a\n"));
    assert!(!has_header(b"text\n") && !has_header(b": x\n") && !has_header(b"") && !has_header(b"a b: x"));
}
