use super::*;
use kedge_base::{BlockNo, Generation};

const SECRET: logwrite::LogSecret = logwrite::LogSecret([0x42; 16]);

#[test]
fn a_resealed_block_is_believed() {
    let (uuid, mut bytes) = (uuid::Uuid::from_bytes([7; 16]), vec![0; node::NODE_SIZE]);
    let (addr, generation) = (BlockNo(64), Generation(3));
    node::NodeMut::init(&mut bytes, &uuid, addr, generation, 0).seal(&SECRET);
    let valid = |bytes: &[u8]| node::NodeView::check(bytes, &uuid, addr, generation, 0).is_ok();
    assert!(valid(&bytes));
    // This byte is in the free space between slots and heap.
    bytes[node::NODE_SIZE / 2] ^= 1;
    assert!(!valid(&bytes));
    assert!(reseal(&mut bytes, &SECRET) && valid(&bytes));
}

#[test]
fn foreign_and_short_bytes_are_left_alone() {
    for foreign in [&b"KEDGEFS\0"[..], b"KEDGENOD..", b"ext4 ext4 ext4 ext4", b"KEDGELOG....", b""] {
        let mut bytes = foreign.to_vec();
        assert!(!reseal(&mut bytes, &SECRET));
        assert_eq!(bytes, foreign);
    }
}

/// Arithmetic on numbers from an image must not overflow.
#[test]
fn impossible_numbers_are_refused() {
    let extent = |start| item::ExtentItem {
        start: BlockNo(start),
        blocks: 1,
        unwritten: false,
        birth: 0,
        counted: false,
    };
    assert!(item::ExtentItem::decode(&extent(BLOCKS_MAX - 1).encode()).is_ok());
    for start in [BLOCKS_MAX, u64::MAX - 1, u64::MAX] {
        assert!(item::ExtentItem::decode(&extent(start).encode()).is_err(), "{start}");
    }
    let inode = |size, blocks| InodeCore { mode: 0o100644, size, blocks, ..InodeCore::default() };
    assert!(InodeCore::decode(&inode(SIZE_MAX, BLOCKS_MAX).encode()).is_ok());
    for (size, blocks) in [(SIZE_MAX + 1, 0), (u64::MAX, 0), (0, BLOCKS_MAX + 1)] {
        assert!(InodeCore::decode(&inode(size, blocks).encode()).is_err(), "{size} {blocks}");
    }
}

#[test]
fn a_child_beyond_every_device_is_refused() {
    let (uuid, generation) = (uuid::Uuid::from_bytes([7; 16]), Generation(3));
    for (addr, valid) in [(64, true), (BLOCKS_MAX, false), (u64::MAX - 3, false)] {
        let mut bytes = vec![0; node::NODE_SIZE];
        let mut inner = node::NodeMut::init(&mut bytes, &uuid, BlockNo(128), generation, 1);
        inner.append(
            &Key::new(kedge_base::Ino(1), ItemKind::Inode, 0),
            &node::Child { addr: BlockNo(addr), generation }.encode(),
        );
        inner.seal(&SECRET);
        let checked = node::NodeView::check(&bytes, &uuid, BlockNo(128), generation, 1);
        assert_eq!(checked.is_ok(), valid, "{addr}");
    }
}
