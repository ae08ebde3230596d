use crate::Alloc;
use crate::test_device::{TestDevice, plan_with_copies, write_frozen};
use kedge_base::{BlockNo, Error, Extent, Generation, Lsn};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::superblock::Geometry;

/// Makes an allocator of `groups` groups whose first checkpoint is durable.
fn opened(groups: u64) -> (Alloc, Geometry, TestDevice, Generation) {
    let device = TestDevice::new(9 * GROUP_BLOCKS * 4096);
    let geometry = plan_with_copies(groups * GROUP_BLOCKS, 1024);
    let alloc = Alloc::format(&geometry);
    let mut generation = Generation(2);
    checkpoint(&alloc, &device, &mut generation);
    (alloc, geometry, device, generation)
}

fn checkpoint(alloc: &Alloc, device: &TestDevice, generation: &mut Generation) {
    let frozen = alloc.freeze();
    write_frozen(device, &frozen, *generation);
    alloc.written(frozen);
    alloc.checkpoint_durable(*generation);
    *generation = generation.next();
}

fn check(alloc: &Alloc) {
    alloc.cells.iter().for_each(|cell| cell.lock().check());
}

/// Tests reason 10 of the crate's documentation.
#[test]
fn blocks_beyond_a_fence_are_not_handed_out_until_it_is_lifted() {
    let (alloc, geometry, ..) = opened(3);
    let beyond = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS + 100), 50, None).unwrap();
    assert!(beyond.start.0 >= 2 * GROUP_BLOCKS);
    alloc.apply_alloc(beyond).unwrap();
    let unused = |alloc: &Alloc| alloc.free_counts().free + 4 * alloc.free_counts().pool;
    let before = unused(&alloc);
    let end = geometry.shrunk(GROUP_BLOCKS + 7, None).vacated_from();
    alloc.fence(end).unwrap();
    check(&alloc);
    assert!(!alloc.is_vacant(), "an extent is there");
    let mut taken = Vec::new();
    while let Ok(extent) = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS), 1000, None) {
        assert!(extent.end() <= end, "{extent:?} reaches beyond {end}");
        taken.push(extent);
    }
    assert!(taken.iter().map(|extent| extent.blocks).sum::<u64>() > GROUP_BLOCKS / 2);
    alloc.apply_free(beyond, Lsn(10)).unwrap();
    assert!(!alloc.is_vacant(), "its record is not durable");
    alloc.durable(Lsn(10));
    alloc.evict_slots();
    assert!(alloc.is_vacant());
    assert!(matches!(alloc.alloc_data(BlockNo(0), 1, None), Err(Error::NoSpace)), "fenced, so not free");
    alloc.unfence();
    taken.into_iter().for_each(|extent| alloc.release_data(extent));
    check(&alloc);
    assert_eq!(unused(&alloc), before + 50);
}

#[test]
fn groups_that_leave_the_image_come_back_with_a_growth() {
    let (alloc, geometry, device, mut generation) = opened(3);
    let new = geometry.shrunk(GROUP_BLOCKS + 5000, None);
    alloc.fence(new.vacated_from()).unwrap();
    assert!(alloc.is_vacant());
    assert!(alloc.shrink(&new));
    check(&alloc);
    checkpoint(&alloc, &device, &mut generation);
    let loaded = Alloc::load(&device, &new, Generation(generation.0 - 1)).unwrap();
    assert_eq!(loaded.free_counts().owned_free, alloc.free_counts().owned_free);
    assert_eq!(alloc.total(), GROUP_BLOCKS + 5000);
    let last = Extent::new(BlockNo(GROUP_BLOCKS + 4999), 1);
    assert!(alloc.apply_alloc(last).is_err(), "it holds a copy of the superblock");

    let back = new.grown(geometry.total_blocks * 4096).unwrap();
    alloc.prepare_growth(&back);
    alloc.grow(&back);
    checkpoint(&alloc, &device, &mut generation);
    check(&alloc);
    let far = alloc.alloc_data(BlockNo(2 * GROUP_BLOCKS + 9), 100, None).unwrap();
    assert!(far.start.0 >= 2 * GROUP_BLOCKS);
    let loaded = Alloc::load(&device, &back, Generation(generation.0 - 1)).unwrap();
    assert_eq!(loaded.free_counts().owned_free, alloc.free_counts().owned_free);
}

/// The new layout is planned long before its cut.
#[test]
fn a_feature_that_is_set_during_a_resize_stays() {
    let (alloc, geometry, device, mut generation) = opened(3);
    let new = geometry.shrunk(2 * GROUP_BLOCKS, None);
    alloc.fence(new.vacated_from()).unwrap();
    alloc.set_has_clones();
    assert!(alloc.shrink(&new));
    assert!(alloc.geometry().has_clones() && !alloc.geometry().has_trees());
    checkpoint(&alloc, &device, &mut generation);
    let back = alloc.geometry().grown(geometry.total_blocks * 4096).unwrap();
    alloc.set_has_trees(true);
    alloc.prepare_growth(&back);
    alloc.grow(&back);
    let layout = alloc.geometry();
    assert!(layout.has_clones() && layout.has_trees() && layout.has_limits());
    assert_eq!(layout.total_blocks, geometry.total_blocks);
}

#[test]
fn a_shrink_with_something_beyond_changes_nothing() {
    let (alloc, geometry, ..) = opened(2);
    let placed = alloc.alloc_data(BlockNo(GROUP_BLOCKS + 100), 5, None).unwrap();
    let new = geometry.shrunk(GROUP_BLOCKS, None);
    alloc.fence(new.vacated_from()).unwrap();
    assert!(!alloc.shrink(&new), "no record names it yet");
    assert_eq!((alloc.total(), &*alloc.geometry()), (geometry.total_blocks, &geometry));
    alloc.release_data(placed);
    assert!(alloc.shrink(&new));
    assert_eq!(alloc.total(), GROUP_BLOCKS);
}

#[test]
fn the_smallest_size_has_room_for_what_is_used() {
    let (alloc, geometry, ..) = opened(3);
    let empty = alloc.smallest();
    assert!(empty >= geometry.data_start.0 && empty < GROUP_BLOCKS / 4, "{empty}");
    let taken = alloc.alloc_data(BlockNo(0), 20_000, None).unwrap();
    alloc.apply_alloc(taken).unwrap();
    let least = geometry.data_start.0 + taken.blocks;
    assert!((least..least + 1500).contains(&alloc.smallest()), "{} of {least}", alloc.smallest());
}
