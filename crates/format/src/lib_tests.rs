use super::*;
use kedge_base::{BlockNo, Generation};

#[test]
fn a_resealed_block_is_believed() {
    let (uuid, mut bytes) = (uuid::Uuid::from_bytes([7; 16]), vec![0; node::NODE_SIZE]);
    let (addr, generation) = (BlockNo(64), Generation(3));
    node::NodeMut::init(&mut bytes, &uuid, addr, generation, 0).seal();
    let valid = |bytes: &[u8]| node::NodeView::check(bytes, &uuid, addr, generation, 0).is_ok();
    assert!(valid(&bytes));
    // In the free space between slots and heap.
    bytes[node::NODE_SIZE / 2] ^= 1;
    assert!(!valid(&bytes));
    assert!(reseal(&mut bytes) && valid(&bytes));
}

#[test]
fn foreign_and_short_bytes_are_left_alone() {
    for foreign in [&b"KEDGEFS\0"[..], b"KEDGENOD..", b"ext4 ext4 ext4 ext4", b""] {
        let mut bytes = foreign.to_vec();
        assert!(!reseal(&mut bytes));
        assert_eq!(bytes, foreign);
    }
}
