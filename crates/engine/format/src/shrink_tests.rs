use super::Maps;
use crate::alloc::{GROUP_BLOCKS, INDEX_ENTRIES};
use crate::node::NODE_BLOCKS;
use crate::superblock::Geometry;
use kedge_base::{BlockNo, Timespec};

const GROUP: u64 = GROUP_BLOCKS * 4096;

fn plan(bytes: u64) -> Geometry {
    Geometry::plan(bytes, 1 << 20, "", uuid::Uuid::nil(), [0; 16], Timespec::default()).unwrap()
}

#[test]
fn maps_before_the_log_stay_and_become_shorter() {
    let geometry = plan(9 * GROUP);
    assert_eq!(geometry.maps_after_shrink(2 * GROUP_BLOCKS), Maps::Stay);
    let new = geometry.shrunk(2 * GROUP_BLOCKS, None);
    assert_eq!((new.groups(), new.total_blocks), (2, 2 * GROUP_BLOCKS));
    assert_eq!((new.index_start, new.bitmap_start), (geometry.index_start, geometry.bitmap_start));
    assert!(new.is_same_image(&geometry));
}

#[test]
fn maps_beyond_the_end_go_back_before_the_log_or_to_a_new_place() {
    let grown = plan(GROUP).grown(9 * GROUP).unwrap();
    assert_eq!(grown.moved_maps().start, GROUP_BLOCKS);
    // The maps end below the new end of the image.
    assert_eq!(grown.maps_after_shrink(5 * GROUP_BLOCKS), Maps::Stay);
    assert_eq!(grown.maps_after_shrink(GROUP_BLOCKS), Maps::Return);
    let returned = grown.shrunk(GROUP_BLOCKS, None);
    assert!(returned.moved_maps().is_empty());
    let original = plan(GROUP);
    assert_eq!((returned.index_start, returned.bitmap_start), (original.index_start, original.bitmap_start));
    let far = grown.grown(40 * GROUP).unwrap();
    assert_eq!(far.moved_maps().start, 9 * GROUP_BLOCKS);
    let Maps::Move(blocks) = far.maps_after_shrink(4 * GROUP_BLOCKS) else {
        panic!("no room before the log")
    };
    let moved = far.shrunk(4 * GROUP_BLOCKS, Some(BlockNo(5000)));
    assert_eq!(moved.moved_maps(), 5000..5000 + blocks);
}

/// A shrink must also vacate the new last block, which gets the copy of the superblock.
#[test]
fn the_new_last_block_is_vacated_for_the_copy() {
    let geometry = plan(2 * GROUP);
    assert_eq!(geometry.shrunk(5000, None).vacated_from(), BlockNo(4999));
}

#[test]
fn an_image_is_not_smaller_than_its_areas_need() {
    let geometry = plan(9 * GROUP);
    assert!(geometry.can_have(4096) && !geometry.can_have(4095), "16 MiB");
    assert!(!geometry.can_have(geometry.total_blocks + 1));
    // The maps of a 16 TiB image occupy 1 GiB before the log: far more than a small image may have
    // there.
    let large = plan(16 << 40);
    let least = large.total_blocks - GROUP_BLOCKS / 2 * GROUP_BLOCKS;
    // The index shrinks too, by a block for every 253 groups; nodes are aligned.
    let rest = (GROUP_BLOCKS / 2).div_ceil(INDEX_ENTRIES as u64) + NODE_BLOCKS;
    assert!(large.can_have(least + rest * GROUP_BLOCKS) && !large.can_have(least - GROUP_BLOCKS));
    // The maps of a 1 TiB image are not too large.
    let medium = plan(1 << 40);
    assert!(medium.can_have(medium.data_start.0 + 100) && !medium.can_have(medium.data_start.0));
}
