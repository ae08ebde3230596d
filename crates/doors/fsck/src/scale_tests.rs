//! Memory stays bounded if there are many files. `KEDGE_FSCK_FILES` sets their number, for
//! measurements in release builds.

use crate::damage_tests::run;
use crate::test_image::{Image, write};
use crate::{Ending, RepairMode, RepairOptions, repair};
use kedge_base::{BlockNo, Clock, Ino, SystemClock};
use kedge_format::item::{Dentry, ExtentItem, name_slot};
use kedge_format::node::NODE_SIZE;
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use std::sync::Arc;

const FILES_PER_DIRECTORY: u64 = 1000;

/// The items in key order: the root, directories, and files of one block.
fn tree(files: u64, seed: [u8; 16], first_block: u64) -> impl Iterator<Item = (Key, Vec<u8>)> {
    let dirs = files.div_ceil(FILES_PER_DIRECTORY);
    let directory = move |ino: u64, parent: u64, entries: Vec<(u64, String, FileKind)>| {
        let subdirs = entries.iter().filter(|e| e.2 == FileKind::Directory).count() as u32;
        let core = InodeCore {
            mode: FileKind::Directory.mode_bits() | 0o755,
            nlink: 2 + subdirs,
            size: entries.len() as u64,
            parent: Ino(parent),
            ..InodeCore::default()
        };
        let mut items = vec![(Key::inode(Ino(ino)), core.encode().to_vec())];
        items.extend(entries.into_iter().map(|(target, name, kind)| {
            let key = Key::new(Ino(ino), ItemKind::Dentry, name_slot(&seed, name.as_bytes()));
            (key, Dentry { ino: Ino(target), kind, name: name.as_bytes() }.encode())
        }));
        items.sort();
        items
    };
    let first_file = 2 + dirs;
    let root =
        move || directory(1, 1, (0..dirs).map(|d| (2 + d, format!("dir{d}"), FileKind::Directory)).collect());
    let dirs = (0..dirs).flat_map(move |d| {
        let from = d * FILES_PER_DIRECTORY;
        let mine = from..files.min(from + FILES_PER_DIRECTORY);
        let entries = mine.map(|f| (first_file + f, format!("file{f:07}"), FileKind::Regular)).collect();
        directory(2 + d, 1, entries)
    });
    let file = move |f: u64| {
        let ino = Ino(first_file + f);
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let core = InodeCore { mode, nlink: 1, size: 4096, blocks: 1, ..InodeCore::default() };
        let extent = ExtentItem {
            start: BlockNo(first_block + f),
            blocks: 1,
            unwritten: false,
            birth: 0,
            counted: false,
        };
        let extent = (Key::new(ino, ItemKind::Extent, 0), extent.encode().to_vec());
        [(Key::inode(ino), core.encode().to_vec()), extent]
    };
    root().into_iter().chain(dirs).chain((0..files).flat_map(file))
}

/// Peak of resident memory in KiB since the last reset.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

#[test]
fn many_files_are_checked() {
    let files: u64 = std::env::var("KEDGE_FSCK_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    // Nodes need about 400 bytes for each file, data one block.
    let mut image = Image::empty((64 << 20) + files * 5000, files / 8 + 256);
    image.items_per_node = usize::MAX;
    let items = tree(files, image.geometry.hash_seed, image.next_data);
    let built = image.build_from(items);
    // Resets the peak. If the kernel does not allow that, the figure includes the building of the
    // image.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = peak_kib();
    let clock = SystemClock::default();
    let started = clock.monotonic();
    let report = run(&built);
    let took = clock.since(started);
    println!("{report}\n{files} files: {took:?}, {} KiB above the image", peak_kib() - before);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.counters.files, files);

    // A repair reads the leaves three more times and writes the tree once.
    let leaf = built.nodes[0][built.nodes[0].len() / 2];
    write(&built.device, leaf, &[0xa5; NODE_SIZE]);
    let device = Arc::new(built.device);
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let (before, started) = (peak_kib(), clock.monotonic());
    let options = RepairOptions { force: true, ..RepairOptions::new(RepairMode::Full) };
    let report = repair(device.clone(), &options);
    let took = clock.since(started);
    // The device is in memory too, so the figure includes the tree that was written.
    println!("repair of {files} files: {took:?}, {} KiB, the new tree included", peak_kib() - before);
    assert_eq!((report.ending, report.exit_code), (Ending::Repaired, 1), "{report}");
    let left = report.after.map_or(0, |after| after.counters.files);
    assert!(left > files - 200 && left < files, "{left} of {files} files are left");
}
