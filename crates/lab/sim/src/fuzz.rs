//! Properties that hold for any bytes on a device: no panic, no hang, and no contradiction between
//! the engine and fsck.
//!
//! Each target takes a fuzzer's input and panics if a property fails. The fuzzer's workspace
//! (`fuzz/`) calls them, and so does an ordinary test, with the corpus in this crate and with
//! random inputs ([`random`]).

pub mod damage;
mod fields;
pub mod hostile;
mod inside;

use crate::ops::OWNER;
use crate::view::View;
use damage::{Kind, base, damaged, edit_one, open, put};
use kedge_base::{BLOCK_SIZE, Lsn};
use kedge_device::MemDevice;
use kedge_format::item::{Dentry, ExtentItem, XattrItem};
use kedge_format::node::{NodeMut, NodeView};
use kedge_format::record::Record;
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_format::{InodeCore, reseal};
use kedge_fsck::{CheckOptions, Ending, RepairMode, RepairOptions, StoreReplay};
use kedgefs::{FileSystem, Ino, SetAttr};
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;

/// Checks an input.
pub type Target = fn(&[u8]);

/// The targets by the names that the corpus and the fuzzer use.
pub const TARGETS: [(&str, Target); 5] =
    [("superblock", superblock), ("log", log), ("node", node), ("image", image), ("fsck", fsck)];

/// Runs a target on the files given on the command line, of which there must be at least one.
pub fn run_files(target: Target) -> std::io::Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        return Err(std::io::Error::other("which files?"));
    }
    files.into_iter().try_for_each(|file| std::fs::read(file).map(|input| target(&input)))
}

/// Superblocks: raw bytes, the same with a correct checksum, and edits of a valid one.
pub fn superblock(input: &[u8]) {
    let mut block = vec![0; BLOCK_SIZE];
    let len = input.len().min(BLOCK_SIZE);
    block[..len].copy_from_slice(&input[..len]);
    for slot in 0..SLOTS.len() {
        let _ = Superblock::decode(&block, slot, damage::IMAGE / BLOCK_SIZE as u64);
        let _ = Superblock::decode(&input[..len], slot, u64::MAX);
    }
    if reseal(&mut block, &base(0).geometry.log_secret) {
        let medium = base(0).medium.fork();
        for slot in SLOTS {
            put(&medium, slot.byte_offset(), &block);
        }
        use_image(medium);
    }
    use_image(damaged(input, &[Kind::Slot]));
}

/// The log: bytes of a record, and edits of log writes that recovery has yet to replay.
pub fn log(input: &[u8]) {
    let _ = Record::decode(Lsn(1 << 20), input);
    if let Some((structure, edits)) = one_of(Kind::Log, input) {
        let mut bytes = structure.read(&base(0).medium);
        edit_one(&mut bytes, structure, edits);
        if let Some(header) = kedge_format::logwrite::WriteHeader::peek(&base(0).geometry.log_key(), &bytes) {
            for (lsn, record) in header.records(&bytes).unwrap_or_default() {
                let _ = Record::decode(lsn, record);
            }
        }
    }
    let mut crashed = input.to_vec();
    if let Some(flags) = crashed.first_mut() {
        *flags &= !damage::flag::UNMOUNTED;
    }
    use_image(damaged(&crashed, &[Kind::Log]));
}

/// Tree nodes: what passes the check can be read, searched and changed.
pub fn node(input: &[u8]) {
    let Some((structure, edits)) = one_of(Kind::Node, input) else { return };
    let mut bytes = structure.read(&base(input[0]).medium);
    edit_one(&mut bytes, structure, edits);
    reseal(&mut bytes, &base(input[0]).geometry.log_secret);
    let header = NodeView::trusted(&bytes);
    let (addr, generation, level) = (header.addr(), header.generation(), header.level());
    let uuid = base(input[0]).geometry.uuid;
    if NodeView::check(&bytes, &uuid, addr, generation, level).is_err() {
        return;
    }
    let view = NodeView::trusted(&bytes);
    for (i, (key, value)) in view.iter().enumerate() {
        assert_eq!(view.search(&key), Ok(i), "a key of a valid node is found");
        if level > 0 {
            let _ = view.child(i);
            assert_eq!(view.child_index(&key), i, "a child covers its own key");
        }
        let _ = (
            Dentry::decode(value),
            XattrItem::decode(value),
            ExtentItem::decode(value),
            InodeCore::decode(value),
            kedge_format::inline::decode(kedge_base::Ino(key.ino), value, u64::MAX),
        );
    }
    change_node(&mut bytes, level, edits);
}

fn change_node(bytes: &mut [u8], level: u8, edits: &[u8]) {
    let whole = |node: &NodeMut<'_>| node.view().check_structure().expect("a change keeps a node valid");
    let mut node = NodeMut::trusted(bytes);
    for (i, byte) in edits.iter().enumerate().take(16) {
        let items = node.view().items();
        if items < 2 {
            break;
        }
        let at = *byte as usize % items;
        let (key, value) = (node.view().key(at), node.view().value(at).to_vec());
        match i % 3 {
            0 => {
                node.remove_at(at);
                whole(&node);
                assert!(node.insert_at(at, &key, &value), "what was removed fits again");
            }
            1 if level == 0 => {
                let longer = vec![*byte; *byte as usize * 2];
                let _ = node.replace_value(at, &longer);
            }
            _ => node.compact(),
        }
        whole(&node);
    }
    node.truncate(1);
    whole(&node);
}

/// A whole image: opens, walks, uses and closes it.
pub fn image(input: &[u8]) {
    use_image(damaged(input, &Kind::ALL));
}

/// fsck's own reader, with and without replay. The engine must be able to read an image that fsck
/// calls clean. A repaired image must be clean.
pub fn fsck(input: &[u8]) {
    let medium = damaged(input, &Kind::ALL);
    let _ = kedge_fsck::check(Arc::new(medium.fork()), &CheckOptions::default());
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(Arc::new(medium.fork()), &options);
    if report.is_clean() {
        readable(medium.fork(), "fsck calls it clean");
        return;
    }
    let device = Arc::new(medium);
    let repair = kedge_fsck::repair(device.clone(), &RepairOptions::new(RepairMode::Full));
    if repair.ending == Ending::Repaired {
        let after = kedge_fsck::check(Arc::new(device.fork()), &options);
        assert!(after.is_clean(), "repaired, yet: {after}");
        readable(device.fork(), "fsck has repaired it");
    }
}

fn readable(medium: MemDevice, why: &str) {
    let fs = open(medium).unwrap_or_else(|e| panic!("{why}, but it does not open: {e}"));
    View::of(&fs).unwrap_or_else(|e| panic!("{why}, but it cannot be read: {e}"));
    fs.close().unwrap_or_else(|e| panic!("{why}, but it cannot be closed: {e}"));
}

/// Returns the structure that an input names first, and the input's edits.
fn one_of(kind: Kind, input: &[u8]) -> Option<(&'static damage::Structure, &[u8])> {
    let all: Vec<_> = base(*input.first()?).structures.iter().filter(|s| s.kind == kind).collect();
    let n = u16::from_le_bytes([*input.get(1)?, *input.get(2)?]) as usize;
    Some((all.get(n % all.len().max(1))?, &input[1..]))
}

/// Reads everything and changes a little of everything. A damaged image may return errors, but must
/// not panic.
fn use_image(medium: MemDevice) {
    let Ok(fs) = open(medium) else { return };
    let view = View::of(&fs);
    let dir = fs.lookup(Ino::ROOT, b"many").map_or(Ino::ROOT, |attr| attr.ino);
    if let Ok(file) = fs.create(dir, b"new file", 0o644, OWNER) {
        let _ = fs.write(file.ino, 3000, &[7; 10_000]);
        let _ = fs.fsync(file.ino, false);
    }
    change_names(&fs, dir);
    let files = view.iter().flat_map(|view| view.inodes.values());
    for found in files.filter(|found| found.attr.kind == kedgefs::FileKind::Regular).take(12) {
        let (ino, size) = (found.attr.ino, found.attr.size);
        let _ = fs.write(ino, size / 2, &[9; 5000]);
        let _ = fs.setattr(ino, &SetAttr { size: Some(size / 3), ..SetAttr::default() });
        let _ = fs.removexattr(ino, b"user.filler");
    }
    let _ = fs.checkpoint();
    let _ = fs.close();
}

fn change_names(fs: &FileSystem, dir: Ino) {
    for n in 0..8 {
        let (a, b) = (format!("file {n}"), format!("file {}", n + 20));
        let _ = match n % 4 {
            0 => fs.unlink(dir, a.as_bytes()),
            1 => fs.rename(dir, a.as_bytes(), Ino::ROOT, b.as_bytes(), kedgefs::RenameMode::Replace),
            2 => fs.rename(dir, a.as_bytes(), dir, b.as_bytes(), kedgefs::RenameMode::Exchange),
            _ => {
                fs.lookup(dir, a.as_bytes()).and_then(|f| fs.link(f.ino, Ino::ROOT, a.as_bytes()).map(|_| ()))
            }
        };
    }
}

/// Returns a random input: usually one edit, so that all other bytes are correct and code that runs
/// long after the first checks meets the damage.
pub fn random(rng: &mut SmallRng) -> Vec<u8> {
    let edits = if rng.random_bool(0.6) { 1 } else { rng.random_range(2..12) };
    let mut input = vec![0; 1 + edits * 8];
    rng.fill(&mut input[..]);
    input[0] = if rng.random_bool(0.05) { damage::flag::UNSEALED } else { 0 } | (input[0] & 1);
    // The header is a small part of a node or record, but most decisions depend on it. So a third
    // of the edits hit the beginning of their structure.
    for edit in input[1..].chunks_exact_mut(8) {
        if rng.random_bool(0.3) {
            edit[3] = 0;
        }
    }
    input
}
