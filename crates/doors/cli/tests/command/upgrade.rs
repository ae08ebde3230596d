//! `kedge upgrade` and `kedge tune --inline`: images of older versions get features in place.

use crate::common::{Place, needs_fuse, write_and_fsync};
use rustix::fs::XattrFlags;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// An image of the first release of format version 2, as a crash left it.
const VERSION_2: &[u8] = include_bytes!("../../../../engine/fs/tests/golden/v2.blocks");
const FEATURES: &[u8] = include_bytes!("../../../../engine/fs/tests/golden/v2-features.blocks");

fn image(place: &Place, name: &str, blocks: &[u8]) {
    let file = File::create(place.path(name)).unwrap();
    file.set_len(16 << 20).unwrap();
    for entry in blocks.chunks_exact(8 + 4096) {
        let (number, block) = entry.split_at(8);
        file.write_all_at(block, u64::from_le_bytes(number.try_into().unwrap()) * 4096).unwrap();
    }
}

#[test]
fn an_image_of_version_2_gets_what_can_be_added_in_place() {
    let place = Place::new();
    image(&place, "old.kedge", VERSION_2);
    place.run("upgrade old.kedge").refused(1, &["old.kedge", "it was not unmounted"]);
    place.run("fsck -p old.kedge");
    place.run("fsck -f -n old.kedge").ok();
    let before = place.run("tar -c old.kedge:/").ok();
    let said = place.run("upgrade old.kedge").ok();
    for text in ["access control lists and attribute values", "only a copy has file flags and copies"] {
        assert!(said.contains(text), "{said}");
    }
    place.run("fsck -f -n old.kedge").ok();
    assert_eq!(place.info("old.kedge")["features"]["incompat"], "0x3");
    assert!(place.run("tar -c old.kedge:/").ok() == before, "files differ after the upgrade");
    assert!(place.run("upgrade old.kedge").ok().contains("nothing to add in place"));
    // A feature that the second image has already is not added again.
    image(&place, "later.kedge", FEATURES);
    place.run("fsck -p later.kedge");
    let said = place.run("upgrade later.kedge").ok();
    assert!(said.contains("can now hold attribute values") && !said.contains("flags"), "{said}");
    // The message names these commands, which make a copy with the other features.
    let archive = place.path("old.tar");
    place.run("tar -c -f old.tar old.kedge:/").ok();
    assert!(archive.exists());
    place.run("mkfs --size 64M --from old.tar new.kedge").ok();
    assert!(place.run("upgrade new.kedge").ok().ends_with("nothing to add in place\n"));
    fs::write(place.path("text"), "no image").unwrap();
    place.run("upgrade text").refused(1, &["text"]);
    place.run("upgrade missing").refused(1, &["missing"]);
}

#[test]
fn an_upgraded_image_takes_large_attributes() {
    needs_fuse!();
    let place = Place::new();
    image(&place, "old.kedge", VERSION_2);
    place.run("fsck -p old.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    let value = [b'x'; 9000];
    let set = || rustix::fs::setxattr(place.path("mnt"), "user.large", &value, XattrFlags::empty());
    place.run("mount old.kedge mnt").ok();
    assert!(set().is_err());
    place.run("upgrade old.kedge").refused(1, &["is mounted on"]);
    place.unmount();
    place.run("upgrade old.kedge").ok();
    place.run("mount old.kedge mnt").ok();
    set().unwrap();
    place.unmount_and_check("old.kedge");
}

#[test]
fn the_data_of_small_files_goes_into_the_tree_from_then_on() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    let inline = |name: &str| {
        let shown = place.run("dump --tree disk.kedge").ok();
        assert!(shown.contains(name), "{shown}");
        shown.matches(" Inline ").count()
    };
    write_and_fsync(&place.path("mnt/before"), &[b'b'; 300]);
    place.unmount();
    assert_eq!(inline("before"), 0);
    place.run("tune --inline 2049 disk.kedge").refused(2, &["2049", "2048"]);
    place.run("tune --inline 512 disk.kedge").ok();
    assert_eq!(inline("before"), 0);
    place.run("tune --inline 256 disk.kedge").refused(1, &["512 bytes", "cannot become less"]);
    place.run("tune --inline off disk.kedge").refused(1, &["512 bytes", "cannot become less"]);
    place.run("mount disk.kedge mnt").ok();
    write_and_fsync(&place.path("mnt/small"), &[b's'; 300]);
    write_and_fsync(&place.path("mnt/larger"), &[b'l'; 900]);
    place.unmount_and_check("disk.kedge");
    assert_eq!(inline("small"), 1);
    place.run("tune --inline 2K disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    write_and_fsync(&place.path("mnt/larger"), &[b'm'; 900]);
    for (name, byte, len) in [("before", b'b', 300), ("small", b's', 300), ("larger", b'm', 900)] {
        assert_eq!(fs::read(place.path("mnt").join(name)).unwrap(), vec![byte; len], "{name}");
    }
    place.unmount_and_check("disk.kedge");
    assert_eq!(inline("larger"), 2);
}
