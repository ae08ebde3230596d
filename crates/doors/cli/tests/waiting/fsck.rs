//! Repairs from the command line: modes, exit codes of fsck(8), refused combinations.

use crate::common::{Place, kill, needs_fuse, write_and_fsync};
use kedge_base::BlockNo;
use kedge_format::superblock::{SLOTS, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;

fn open(place: &Place) -> File {
    File::options().read(true).write(true).open(place.path("a.kedge")).unwrap()
}

fn slots(file: &File) -> impl Iterator<Item = Superblock> {
    [0, 1].into_iter().filter_map(|slot| {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, SLOTS[slot].byte_offset()).unwrap();
        Superblock::decode(&block, slot, 4096).ok()
    })
}

fn newest(file: &File) -> Superblock {
    slots(file).max_by_key(|sb| sb.checkpoint.generation).unwrap()
}

fn overwrite(file: &File, block: BlockNo) {
    file.write_all_at(&[0xff; 4096], block.byte_offset()).unwrap();
}

fn made() -> Place {
    Place::after("mkfs --size 16M --log-size 1M a.kedge")
}

#[test]
fn an_unmounted_image_is_skipped_unless_forced() {
    let place = made();
    for mode in ["-p", "-a", "-y", "-aC0"] {
        let out = place.run(&format!("fsck {mode} a.kedge")).ok();
        assert!(out.contains("clean") && out.contains("unmounted"), "{mode}: {out}");
    }
    for mode in ["-f -p", "-fy", "-n", "-f"] {
        let out = place.run(&format!("fsck {mode} a.kedge")).ok();
        assert!(out.contains("1 inodes"), "{mode}: {out}");
    }
}

#[test]
fn bitmaps_are_repaired_by_preening() {
    let place = made();
    let file = open(&place);
    for home in newest(&file).geometry.bitmap_start {
        overwrite(&file, home);
    }
    assert_eq!(place.run("fsck -n a.kedge").code, 4);
    let run = place.run("fsck -p -f a.kedge");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("bitmap-bad") && run.out.contains("space-rebuilt"), "{}", run.out);
    assert!(run.out.contains("repaired; checked again: clean"), "{}", run.out);
    assert_eq!(place.run("fsck a.kedge").code, 0);
}

#[test]
fn what_is_lost_is_left_by_preening_and_dropped_on_demand() {
    let place = made();
    let file = open(&place);
    overwrite(&file, newest(&file).checkpoint.root);
    let before = std::fs::read(place.path("a.kedge")).unwrap();
    let run = place.run("fsck -p -f a.kedge");
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("nothing was written (node-bad: run fsck -y"), "{}", run.out);
    assert!(std::fs::read(place.path("a.kedge")).unwrap() == before, "something was written");

    let run = place.run("fsck -y -f --json a.kedge");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["ending"], "repaired");
    assert_eq!(report["before"]["counts"]["node-bad"], 1);
    assert_eq!(report["repair_counts"]["node-dropped"], 1);
    assert_eq!(report["repair_counts"]["inode-remade"], 1, "the root directory");
    assert!(report["repairs"].as_array().unwrap().iter().any(|r| r["kind"] == "node-dropped"));
    assert_eq!((&report["after"]["errors"], &report["errors_left"]), (&0.into(), &0.into()));
    assert_eq!(place.run("fsck a.kedge").code, 0);
}

#[test]
fn an_image_without_superblock_is_refused() {
    let place = made();
    let file = open(&place);
    SLOTS.iter().for_each(|slot| file.write_all_at(&[0xff; 100], slot.byte_offset() + 200).unwrap());
    // The image is small and has one copy of the superblock, in its last block.
    let end = file.metadata().unwrap().len();
    file.write_all_at(&[0xff; 100], end - 4096 + 200).unwrap();
    let run = place.run("fsck -y a.kedge");
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("there is no valid superblock to repair from"), "{}", run.out);
}

#[test]
fn an_image_whose_beginning_was_overwritten_comes_back() {
    let place = Place::new();
    place.run("mkfs --size 64M big.kedge").ok();
    std::fs::write(place.path("file"), "kept").unwrap();
    place.run("cp file big.kedge:/file").ok();
    assert_eq!(place.run("fsck big.kedge").code, 0);
    let file = std::fs::File::options().read(true).write(true).open(place.path("big.kedge")).unwrap();
    file.write_all_at(&vec![0; 16 << 20], 0).unwrap();
    // Each command names the repair that is needed.
    for command in ["info big.kedge", "cat big.kedge:/file", "dump --tree big.kedge"] {
        place.run(command).refused(1, &["big.kedge", "holds a copy", "kedge fsck -y"]);
    }
    let run = place.run("fsck big.kedge");
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    let run = place.run("fsck -p big.kedge");
    assert!(run.code == 4 && run.out.contains("fsck -y"), "{}{}", run.out, run.err);
    let run = place.run("fsck -y big.kedge");
    assert!(run.code == 1 && run.out.contains("superblock-restored block 16383"), "{}{}", run.out, run.err);
    assert_eq!(place.run("fsck big.kedge").code, 0);
    assert_eq!(place.run("cat big.kedge:/file").ok(), "kept");
    assert!(place.run("dump big.kedge").ok().contains("copy at block 16383"));
}

#[test]
fn modes_exclude_one_another_and_an_image_in_use_is_refused() {
    let place = made();
    for modes in ["-n -y", "-p -n", "-a -y"] {
        place.run(&format!("fsck {modes} a.kedge")).refused(16, &["only one of"]);
    }
    place.run("fsck -0 a.kedge").refused(16, &["-C"]);
    let file = open(&place);
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    for mode in ["-p", "-y"] {
        place.run(&format!("fsck {mode} a.kedge")).refused(8, &["a.kedge", "in use"]);
    }
}

/// The state after an unclean end is no damage, and the report must not read like damage.
#[test]
fn words_after_an_ordinary_replay() {
    needs_fuse!();
    let place = Place::after("mount --create 16M a.kedge mnt");
    write_and_fsync(&place.path("mnt/file"), b"kept");
    kill(&place, "mnt");
    place.run("umount mnt");
    let checked = place.run("fsck a.kedge").ok();
    assert!(checked.contains("not unmounted, so checked as the next mount would find it"), "{checked}");
    let repaired = place.run("fsck -p a.kedge").ok();
    assert!(repaired.contains("log replayed, as the next mount would have"), "{repaired}");
    for text in [checked, repaired] {
        for alarm in ["repair", "rebuilt", "corrected", "error", "warning"] {
            assert!(!text.contains(alarm), "'{alarm}' in {text}");
        }
        assert!(text.contains("clean"), "{text}");
    }
}
