use super::*;
use crate::ItemKind;
use proptest::prelude::*;

#[test]
fn a_record_reads_back_as_it_was_built() {
    let core = InodeCore {
        mode: 0o100_644,
        nlink: 1,
        size: 7,
        mtime: Timespec { sec: -5, nsec: 3 },
        ..Default::default()
    };
    let mut b = RecordBuilder::new(RecordOp::Create);
    b.inode(Ino(9), InodeMask::CREATE | InodeMask::ALL_FIELDS, &core);
    b.put(Key::new(Ino(1), ItemKind::Dentry, 512), b"value");
    b.delete(Key::inode(Ino(4)));
    b.alloc(Extent::new(BlockNo(5), 6));
    b.free(Extent::new(BlockNo(7), 8));
    b.data(Ino(9), 3, b"hello");
    b.zero(Ino(9), 4096, 4096);
    b.drop_data(Ino(9), 0, 10);
    let bytes = b.finish();
    let record = Record::decode(Lsn(0), &bytes).unwrap();
    assert_eq!(record.op, RecordOp::Create);
    assert_eq!(
        record.edits,
        vec![
            Edit::Inode(InodePatch { ino: Ino(9), mask: InodeMask::CREATE | InodeMask::ALL_FIELDS, core }),
            Edit::Put { key: Key::new(Ino(1), ItemKind::Dentry, 512), value: b"value" },
            Edit::Delete { key: Key::inode(Ino(4)) },
            Edit::Alloc(Extent::new(BlockNo(5), 6)),
            Edit::Free(Extent::new(BlockNo(7), 8)),
            Edit::Data { ino: Ino(9), offset: 3, bytes: b"hello" },
            Edit::Zero { ino: Ino(9), offset: 4096, len: 4096 },
            Edit::Drop { ino: Ino(9), offset: 0, len: 10 },
        ]
    );
}

/// Without the limit, a `Zero` edit of 25 bytes could cover 2^54 bytes, and recovery would list
/// their blocks until memory was exhausted.
#[test]
fn zeros_of_more_than_one_block_are_refused() {
    let record = |offset: u64, len: u64| {
        let mut b = RecordBuilder::new(RecordOp::Truncate);
        b.zero(Ino(9), 4096, 1);
        let mut bytes = b.finish();
        let at = bytes.len() - 16;
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 8..].copy_from_slice(&len.to_le_bytes());
        bytes
    };
    let accepted = |offset, len| Record::decode(Lsn(0), &record(offset, len)).is_ok();
    for (offset, len) in [(0, 1), (0, 4096), (4096, 4096), (4097, 4095), (8191, 1)] {
        assert!(accepted(offset, len), "{len} bytes at {offset}");
    }
    for (offset, len) in [(0, 0), (0, 4097), (1, 4096), (8191, 2), (0, 1 << 54), (4096, u64::MAX - 4096)] {
        assert!(!accepted(offset, len), "{len} bytes at {offset}");
    }
}

/// Without the limit, each pair of edits of 17 bytes could allocate and free all blocks of a large
/// image, bit by bit.
#[test]
fn runs_of_more_blocks_than_a_group_has_are_refused() {
    let accepted = |blocks: u64| {
        let mut b = RecordBuilder::new(RecordOp::WriteBack);
        b.alloc(Extent::new(BlockNo(40_000), blocks));
        b.free(Extent::new(BlockNo(40_000), blocks));
        Record::decode(Lsn(0), &b.finish()).is_ok()
    };
    assert!(accepted(1) && accepted(crate::item::EXTENT_BLOCKS_MAX));
    assert!(!accepted(0) && !accepted(crate::item::EXTENT_BLOCKS_MAX + 1) && !accepted(1 << 40));
}

#[test]
fn a_patch_sets_its_fields_and_no_other() {
    let new = InodeCore { size: 10, uid: 5, ..Default::default() };
    let mut target = InodeCore { size: 1, uid: 2, gid: 3, ..Default::default() };
    InodePatch { ino: Ino(2), mask: InodeMask::SIZE, core: new }.apply_to(&mut target);
    assert_eq!((target.size, target.uid, target.gid), (10, 2, 3));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Record::decode(Lsn(1), &bytes);
    }

    #[test]
    fn a_cut_record_is_refused(cut in 0usize..60) {
        let mut b = RecordBuilder::new(RecordOp::SetAttr);
        b.inode(Ino(2), InodeMask::MODE | InodeMask::MTIME, &InodeCore::default());
        b.data(Ino(2), 0, &[1; 30]);
        let bytes = b.finish();
        prop_assume!(cut < bytes.len());
        prop_assert!(Record::decode(Lsn(1), &bytes[..cut]).is_err());
    }
}

/// The tables of the documentation are generated from `EDITS` and `InodeMask::FIELDS`, which must
/// agree with what the builder writes.
#[test]
fn encoded_edits_have_the_layout_that_is_documented() {
    let (ino, extent) = (Ino(7), Extent::new(BlockNo(9), 3));
    let bytes_of = |build: &dyn Fn(&mut RecordBuilder)| {
        let mut record = RecordBuilder::new(RecordOp::Create);
        build(&mut record);
        record.finish()
    };
    let key = Key::inode(ino);
    let built: [(u8, usize, Vec<u8>); 8] = [
        (1, 0, bytes_of(&|r| r.inode(ino, InodeMask::default(), &InodeCore::default()))),
        (2, 5, bytes_of(&|r| r.put(key, b"value"))),
        (3, 0, bytes_of(&|r| r.delete(key))),
        (4, 0, bytes_of(&|r| r.alloc(extent))),
        (5, 0, bytes_of(&|r| r.free(extent))),
        (6, 4, bytes_of(&|r| r.data(ino, 0, b"data"))),
        (7, 0, bytes_of(&|r| r.zero(ino, 0, 1))),
        (8, 0, bytes_of(&|r| r.drop_data(ino, 0, 1))),
    ];
    for ((tag, variable, bytes), layout) in built.iter().zip(EDITS) {
        assert_eq!((layout.tag, bytes[RECORD_HEADER]), (*tag, *tag), "{}", layout.name);
        let fixed: usize = layout.parts.iter().map(|part| part.1).sum();
        assert_eq!(bytes.len(), RECORD_HEADER + 1 + fixed + variable, "{}", layout.name);
    }
    let empty = built[0].2.len();
    let mut all = InodeMask::default();
    for (i, (bit, name, bytes)) in InodeMask::FIELDS.into_iter().enumerate() {
        assert_eq!(bit.0, 1 << i, "{name} is out of order");
        let record = bytes_of(&|r| r.inode(ino, bit, &InodeCore::default()));
        assert_eq!(record.len(), empty + bytes, "{name}");
        all |= bit;
    }
    assert_eq!(all, InodeMask::ALL_FIELDS);
}

/// The sizes must be exact: operations compute their reservations from them.
#[test]
fn the_sizes_of_edits_are_what_the_builder_writes() {
    let bytes = |edit: &dyn Fn(&mut RecordBuilder)| {
        let mut record = RecordBuilder::new(RecordOp::Format);
        edit(&mut record);
        (record.len() - RECORD_HEADER) as u64
    };
    let key = Key::inode(Ino(1));
    let run = Extent::new(BlockNo(1), 1);
    for bit in 0..14 {
        let masks = [InodeMask(1 << bit), InodeMask((1 << bit) - 1), InodeMask::ALL_FIELDS];
        for mask in masks {
            assert_eq!(
                bytes(&|r| r.inode(Ino(1), mask, &InodeCore::default())),
                size::patch(mask),
                "{mask:?}"
            );
        }
    }
    assert!(size::PATCH >= size::patch(InodeMask::CREATE));
    assert_eq!(bytes(&|r| r.put(key, &[0; 16])), size::EXTENT_ITEM);
    assert_eq!(bytes(&|r| r.put(key, &[0; 100])), size::put(100));
    assert_eq!(bytes(&|r| r.delete(key)), size::DELETE);
    assert_eq!(bytes(&|r| r.alloc(run)), size::RUN);
    assert_eq!(bytes(&|r| r.free(run)), size::RUN);
    assert_eq!(bytes(&|r| r.zero(Ino(1), 0, 1)), size::RANGE);
    assert_eq!(bytes(&|r| r.drop_data(Ino(1), 0, 1)), size::RANGE);
    assert_eq!(bytes(&|r| r.data(Ino(1), 0, &[0; 7])), size::DATA + 7);
}

#[test]
fn a_record_goes_back_to_a_mark() {
    let mut record = RecordBuilder::new(RecordOp::Format);
    record.delete(Key::inode(Ino(1)));
    let (mark, before) = (record.mark(), record.clone().finish());
    record.delete(Key::inode(Ino(2)));
    record.alloc(Extent::new(BlockNo(1), 1));
    record.go_back(mark);
    assert_eq!(record.finish(), before);
}
