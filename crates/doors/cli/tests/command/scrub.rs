//! `kedge scrub` of unmounted and mounted images, and the paths that findings name.

use crate::common::{Place, kill, needs_fuse, write_and_fsync};
use kedge_base::BLOCK_SIZE;
use kedge_format::node::{NODE_SIZE, NodeView};
use kedge_format::superblock::{SLOTS, Superblock};
use kedge_format::{FileKind, ItemKind, Key};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SIZE: u64 = 32 << 20;

/// An image with `/dir/NAME` for 2000 names: a tree of several leaves.
fn many_files(place: &Place) {
    let dir = place.path("source/dir");
    fs::create_dir_all(&dir).unwrap();
    (0..2000).for_each(|i| fs::write(dir.join(format!("name{i}")), b"").unwrap());
    place.run("mkfs --from source --size 32M --log-size 1M disk.kedge").ok();
}

fn newest(file: &File) -> Superblock {
    let slot = |slot: usize| {
        let mut block = vec![0; BLOCK_SIZE];
        file.read_exact_at(&mut block, SLOTS[slot].byte_offset()).unwrap();
        Superblock::decode(&block, slot, SIZE / BLOCK_SIZE as u64).ok()
    };
    [0, 1].into_iter().filter_map(slot).max_by_key(|sb| sb.checkpoint.generation).unwrap()
}

/// Flips a bit in the leaf with the highest inode numbers. Returns the leaf's block.
fn damage_last_leaf(image: &Path) -> u64 {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let sb = newest(&file);
    let (mut at, mut level) = (sb.checkpoint.root, sb.checkpoint.root_level);
    assert!(level > 0, "several leaves are wanted");
    loop {
        let mut bytes = vec![0; NODE_SIZE];
        file.read_exact_at(&mut bytes, at.byte_offset()).unwrap();
        let node = NodeView::trusted(&bytes);
        if level == 0 {
            file.write_all_at(&[bytes[9000] ^ 1], at.byte_offset() + 9000).unwrap();
            return at.0;
        }
        (at, level) = (node.child(node.items() - 1).addr, level - 1);
    }
}

#[test]
fn an_unmounted_image() {
    let place = Place::new();
    many_files(&place);
    let before = fs::read(place.path("disk.kedge")).unwrap();
    let out = place.run("scrub disk.kedge").ok();
    assert!(out.contains("valid: 2 of 2 superblock slots") && out.ends_with("clean\n"), "{out}");
    let report: serde_json::Value = serde_json::from_str(&place.run("scrub --json disk.kedge").ok()).unwrap();
    assert_eq!((&report["mounted"], &report["confirmed"]), (&false.into(), &true.into()));
    assert!(report["counters"]["nodes"].as_u64().unwrap() > 10, "{report:#}");
    assert!(fs::read(place.path("disk.kedge")).unwrap() == before, "something was written");

    let block = damage_last_leaf(&place.path("disk.kedge"));
    for line in ["scrub disk.kedge", "fsck disk.kedge"] {
        let run = place.run(line);
        assert_eq!(run.code, 4, "{line}: {}{}", run.out, run.err);
        assert!(run.out.contains(&format!("error: node-bad block {block}: ")), "{line}: {}", run.out);
        assert!(run.out.contains("concerns /dir/name"), "{line}: {}", run.out);
    }
    fs::write(place.path("text"), vec![b'x'; 200_000]).unwrap();
    assert_eq!(place.run("scrub text").code, 8);
    place.run("scrub gone").refused(8, &["gone"]);
    place.run("scrub").refused(16, &["<IMAGE|DIR>"]);
}

/// Findings about inodes name all links of the inode.
#[test]
fn fsck_names_the_paths_of_inodes() {
    let place = Place::new();
    fs::create_dir_all(place.path("source/a/b")).unwrap();
    fs::write(place.path("source/a/b/one"), b"x").unwrap();
    fs::hard_link(place.path("source/a/b/one"), place.path("source/two")).unwrap();
    place.run("mkfs --from source --size 32M --log-size 1M disk.kedge").ok();
    let file = File::options().read(true).write(true).open(place.path("disk.kedge")).unwrap();
    let sb = newest(&file);
    assert_eq!(sb.checkpoint.root_level, 0);
    let mut bytes = vec![0; NODE_SIZE];
    file.read_exact_at(&mut bytes, sb.checkpoint.root.byte_offset()).unwrap();
    let mut node = kedge_format::node::NodeMut::trusted(&mut bytes);
    let is_linked = |(key, value): &(Key, &[u8])| {
        key.kind == ItemKind::Inode as u8
            && kedge_format::InodeCore::decode(value)
                .is_ok_and(|c| c.nlink == 2 && c.kind() == Some(FileKind::Regular))
    };
    let i = node.view().iter().position(|item| is_linked(&item)).unwrap();
    node.value_mut(i)[16] = 7;
    node.seal(&sb.geometry.log_secret);
    file.write_all_at(&bytes, sb.checkpoint.root.byte_offset()).unwrap();
    let run = place.run("fsck disk.kedge");
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let line = run.out.lines().find(|l| l.contains("nlink-wrong")).unwrap_or_else(|| panic!("{}", run.out));
    assert!(line.contains("/a/b/one") && line.contains("/two"), "{line}");
    let report: serde_json::Value = serde_json::from_str(&place.run("fsck --json disk.kedge").out).unwrap();
    assert_eq!(report["findings"][0]["paths"].as_array().unwrap().len(), 2, "{report:#}");
}

#[test]
fn beside_a_mount_that_writes() {
    needs_fuse!();
    let place = Place::new();
    many_files(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    let (stop, mnt) = (Arc::new(AtomicBool::new(false)), place.path("mnt/dir"));
    let writer = {
        let stop = stop.clone();
        kedge_base::spawn_named("writer", move || {
            let mut rounds = 0u32;
            while !stop.load(Ordering::Relaxed) {
                // Names are removed and made, so nodes are freed and reused; a log of 1 MiB causes
                // frequent checkpoints.
                (0..100).for_each(|i| {
                    let name = mnt.join(format!("name{}", (rounds * 100 + i) % 2000));
                    fs::remove_file(&name).unwrap();
                    write_and_fsync(&name, &[7; 3000]);
                });
                rounds += 1;
            }
            rounds
        })
        .unwrap()
    };
    let generation =
        |place: &Place| newest(&File::open(place.path("disk.kedge")).unwrap()).checkpoint.generation;
    let first = generation(&place);
    // Continue until the mount has checkpointed several times, so that a scrub that mistakes reuse
    // for damage would report it.
    let (mut scrubs, mut certain) = (0, 0);
    while scrubs < 10 || certain < 5 || generation(&place).0 < first.0 + 10 {
        for target in ["mnt", "disk.kedge"] {
            let run = place.run(&format!("scrub --json {target}"));
            let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
            assert_eq!(report["mounted"], true, "{report:#}");
            // On a mount that is written to, a scrub may have findings that it could not confirm.
            assert!(run.code == 0 || run.code == 8 && report["confirmed"] == false, "{report:#}");
            certain += u32::from(run.code == 0);
        }
        scrubs += 1;
        assert!(scrubs < 1000, "{certain} certain results, generation {}", generation(&place));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 0);
    // Without writes the mount is clean. Then damage the image.
    place.remount("disk.kedge", "");
    assert_eq!(place.run("scrub mnt").code, 0);
    damage_last_leaf(&place.path("disk.kedge"));
    let run = place.run("scrub mnt");
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("error: node-bad"), "{}", run.out);
    kill(&place, "mnt");
}
