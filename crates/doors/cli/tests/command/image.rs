//! Makes and examines images without mounts.

use crate::common::Place;

#[test]
fn a_new_image_is_what_was_asked_for_and_clean() {
    let place = Place::new();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let out = place.run(&format!("mkfs --size 16M --log-size 1M -L small -U {uuid} a.kedge")).ok();
    assert!(out.contains(uuid) && out.contains("16 MiB"), "{out}");
    let info = place.info("a.kedge");
    assert_eq!(info["uuid"], uuid);
    assert_eq!(info["label"], "small");
    assert_eq!(info["size_bytes"], 16 << 20);
    assert_eq!(info["log_size_bytes"], 1 << 20);
    assert_eq!(info["clean"], true);
    let report = place.run("fsck -n a.kedge");
    assert_eq!(report.code, 0, "{}{}", report.out, report.err);
    let report: serde_json::Value = serde_json::from_str(&place.run("fsck --json a.kedge").ok()).unwrap();
    assert_eq!(report["errors"], 0);
    assert!(place.run("dump a.kedge").ok().contains("slot 0"));
    assert!(place.run("dump --log a.kedge").ok().contains("the log ends"));
    let root = place.run("dump --ino 1 a.kedge").ok();
    assert!(root.starts_with("(1 Inode 0) mode 40755"), "{root}");
    assert!(place.run("dump --tree a.kedge").ok().contains("(1 Inode 0)"));
    let left = std::fs::read_dir(place.path("")).unwrap().count();
    assert_eq!(left, 1, "no temporary file stays");
}

#[test]
fn what_holds_data_is_overwritten_only_on_demand() {
    let place = Place::after("mkfs --size 16M a.kedge");
    let first = place.info("a.kedge")["uuid"].clone();
    place.run("mkfs a.kedge").refused(1, &["a.kedge holds a KedgeFS image", "-f"]);
    assert_eq!(place.info("a.kedge")["uuid"], first);
    place.run("mkfs -f --size 32M a.kedge").ok();
    let info = place.info("a.kedge");
    assert_ne!(info["uuid"], first);
    assert_eq!(info["size_bytes"], 32 << 20, "the file was extended");
    assert_eq!(place.run("fsck a.kedge").code, 0);
}

#[test]
fn an_existing_blank_file_is_used_whole() {
    let place = Place::new();
    std::fs::File::create(place.path("blank")).unwrap().set_len(24 << 20).unwrap();
    place.run("mkfs blank").ok();
    assert_eq!(place.info("blank")["size_bytes"], 24 << 20);
}

#[test]
fn an_image_that_cannot_be_leaves_nothing_behind() {
    let place = Place::new();
    place.run("mkfs --size 8M a.kedge").refused(1, &["a.kedge", "16 MiB"]);
    place.run("mkfs --size 16M --log-size 64K a.kedge").refused(1, &["a.kedge", "1 MiB"]);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0);
}

#[test]
fn damage_is_found_and_not_repaired() {
    use kedge_format::superblock::{SLOTS, Superblock};
    use std::os::unix::fs::FileExt;
    let place = Place::after("mkfs --size 16M a.kedge");
    let file = std::fs::File::options().read(true).write(true).open(place.path("a.kedge")).unwrap();
    let slot = place.info("a.kedge")["generation"].as_u64().unwrap() as usize % 2;
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, SLOTS[slot].byte_offset()).unwrap();
    let root = Superblock::decode(&block, slot, 4096).unwrap().checkpoint.root;
    file.write_all_at(&[0xff], root.byte_offset() + 5000).unwrap();

    let before = std::fs::read(place.path("a.kedge")).unwrap();
    let run = place.run("fsck a.kedge");
    assert_eq!(run.code & 4, 4, "{} {}{}", run.code, run.out, run.err);
    assert!(run.out.contains(&format!("block {root}")), "{}", run.out);
    assert!(std::fs::read(place.path("a.kedge")).unwrap() == before, "something was written");
}
