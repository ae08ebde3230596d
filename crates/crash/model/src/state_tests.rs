#![allow(clippy::unwrap_used)]

use crate::disk::Disk;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..20_000u64, 1..9000usize, 1..255u8).prop_map(|(at, len, byte)| Op::Write(at, vec![byte; len])),
        1 => (0..30_000u64).prop_map(Op::Truncate),
    ]
}

proptest! {
    /// A file reads like an array of bytes.
    #[test]
    fn a_file_is_an_array_of_bytes(ops in prop::collection::vec(op(), 1..20)) {
        let disk = Disk::new();
        let file = disk.create("f").unwrap();
        let mut model = Vec::new();
        for op in ops {
            match op {
                Op::Write(at, bytes) => {
                    file.write_at(at, &bytes).unwrap();
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                Op::Truncate(size) => {
                    file.set_len(size).unwrap();
                    model.resize(size as usize, 0);
                }
            }
            prop_assert_eq!(&disk.read("f").unwrap(), &model);
        }
    }
}

#[test]
fn a_number_for_what_is_seen() {
    let make = |change: &dyn Fn(&Disk)| {
        let disk = Disk::new();
        disk.create("a").unwrap().write_at(0, b"text").unwrap();
        change(&disk);
        disk.state().digest()
    };
    let base = make(&|_| {});
    assert_eq!(base, make(&|_| {}));
    // The digest does not depend on history, on inode numbers, or on whether a hole is written with
    // zeros.
    assert_eq!(
        base,
        make(&|disk| {
            disk.rename("a", "b").unwrap();
            disk.create("x").unwrap();
            disk.remove("x").unwrap();
            disk.rename("b", "a").unwrap();
            disk.open("a").unwrap().write_at(4, &[0; 4096]).unwrap();
            disk.open("a").unwrap().set_len(4).unwrap();
        })
    );
    let others = [
        make(&|disk| disk.open("a").unwrap().write_at(0, b"T").unwrap()),
        make(&|disk| disk.open("a").unwrap().set_len(5).unwrap()),
        make(&|disk| disk.rename("a", "b").unwrap()),
        make(&|disk| disk.hard_link("a", "b").unwrap()),
        make(&|disk| disk.create("b").unwrap().write_at(0, b"text").unwrap()),
        make(&|disk| disk.create_dir("b").unwrap()),
    ];
    for (i, one) in others.iter().enumerate() {
        assert!(*one != base && others[..i].iter().all(|o| o != one), "change {i} is not seen");
    }
}

#[test]
fn a_copy_is_not_changed_by_changes_of_the_other() {
    let disk = Disk::new();
    let file = disk.create("a").unwrap();
    file.write_at(0, &[1; 300_000]).unwrap();
    let before = disk.state();
    file.write_at(100_000, &[2; 5000]).unwrap();
    file.set_len(200_000).unwrap();
    disk.rename("a", "b").unwrap();
    assert_eq!(before.content(b"a").unwrap(), vec![1; 300_000]);
    assert!(before.find(b"b").is_none());
}
