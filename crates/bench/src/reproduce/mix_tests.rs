use super::*;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};
use std::sync::Arc;

#[test]
fn it_has_the_proportions_and_leaves_nothing_behind() {
    let device = Arc::new(MemDevice::new(128 << 20));
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).unwrap();
    let sum = run(&library, 2, 1, &Interrupt::new(|_| {})).unwrap();
    let count = |i: usize| sum.operations[i].count();
    let renames = count(RENAME);
    assert!(renames >= 1.0 && sum.throughput > 0.0 && sum.max_latency > 0.0);
    assert_eq!(count(CREATE) / renames, 24.0);
    assert_eq!(count(WRITE) / renames, 12.0);
    assert_eq!(count(UNLINK) / renames, 4.0, "the fifth is the file that the rename replaces");
    assert!((1.0..=2.0).contains(&(count(FLUSH) / renames)));
    let mut entries = 0;
    let mut visit = |_: kedgefs::DirEntry<'_>| {
        entries += 1;
        true
    };
    library.fs().readdir(Ino::ROOT, 0, &mut visit).unwrap();
    assert_eq!(entries, 2);
    library.close().unwrap();
}
