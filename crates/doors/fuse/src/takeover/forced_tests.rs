//! Changes that the journal does not cover, with a death of their server at each step.

use super::*;
use crate::abi::{Rename2In, RenameIn, TreeIn, ioctl};
use crate::keep::steps::break_rule;
use crate::takeover::tests::{Change, World, differences_of, named, xattr};
use zerocopy::FromZeros;

fn ioctl(cmd: u32, input: &[u8]) -> Vec<u8> {
    [abi::IoctlIn { cmd, in_size: input.len() as u32, ..abi::IoctlIn::default() }.as_bytes(), input].concat()
}

/// Makes a tree `t`, and `u`, a fork of it.
fn plant(w: &World) {
    for (source, name) in [("", "t"), ("t", "u")] {
        w.fs.fork(Ino(w.ino(source)), Ino::ROOT, name.as_bytes(), false).unwrap();
    }
}

fn tree(name: &'static str, cmd: u32, source: &'static str, flags: u32, target: &'static str) -> Change {
    let body = move |w: &World| {
        plant(w);
        let source = if source == "-" { 0 } else { w.ino(source) };
        let mut asked = TreeIn { source, flags, name_len: target.len() as u32, ..TreeIn::new_zeroed() };
        asked.name_head.as_mut_bytes()[..target.len()].copy_from_slice(target.as_bytes());
        ioctl(cmd, asked.as_bytes())
    };
    Change(name, op::IOCTL, "", Box::new(body))
}

fn changes() -> Vec<Change> {
    let to_dir = |w: &World| RenameIn { newdir: w.ino("dir") }.as_bytes().to_vec();
    let whiteout =
        |w: &World| Rename2In { newdir: w.ino("dir"), flags: 4, ..Rename2In::default() }.as_bytes().to_vec();
    let limit = abi::LimitIn {
        bytes: 1 << 20,
        files: 100,
        flags: abi::LIMIT_BYTES | abi::LIMIT_FILES,
        ..abi::LimitIn::new_zeroed()
    };
    let renamed = move |w: &World| {
        plant(w);
        named(&to_dir(w), &["t", "moved"])
    };
    vec![
        tree("fork", ioctl::FORK, "", 0, "new"),
        tree("snapshot", ioctl::FORK, "t", abi::TREE_READ_ONLY, "new"),
        tree("delete", ioctl::DELETE_TREE, "-", 0, "u"),
        tree("roll back", ioctl::ROLL_BACK, "t", 0, "u"),
        tree("commit", ioctl::COMMIT_TREE, "u", abi::TREE_FORCE, "t"),
        Change("rename a tree", op::RENAME, "", Box::new(renamed)),
        Change("whiteout", op::RENAME2, "", Box::new(move |w| named(&whiteout(w), &["a", "x"]))),
        Change("limit", op::IOCTL, "dir", Box::new(move |_| ioctl(ioctl::SET_LIMIT, limit.as_bytes()))),
        Change("flags", op::IOCTL, "a", Box::new(|_| ioctl(ioctl::SETFLAGS, &0x40u64.to_ne_bytes()))),
        Change("size", op::SETXATTR, "", Box::new(|_| xattr(0, "system.kedgefs.size", b""))),
    ]
}

/// After the reply to a change, the death of its server does not lose the change.
#[test]
fn a_forced_change_is_durable_before_its_reply() {
    for Change(name, opcode, path, arguments) in changes() {
        let mut world = World::new();
        let (node, body) = (world.ino(path), arguments(&world));
        world.send(1000, opcode, node, &body);
        let want = world.tree();
        world.next_life();
        assert_eq!(world.tree(), want, "{name}");
    }
}

#[test]
fn each_forced_change_is_made_once_wherever_its_server_dies() {
    let changes = changes();
    assert_eq!(differences_of(&changes), Vec::<String>::new());
    break_rule(Broken::ForcedRepeated);
    let differ = differences_of(&changes[..1]);
    break_rule(Broken::Nothing);
    println!("{} cases differ, such as {:?}", differ.len(), differ.first());
    assert!(differ.iter().any(|case| case.contains("at Finished")), "{differ:?}");
}
