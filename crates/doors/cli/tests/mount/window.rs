//! Images inside a larger file: `-o offset=,sizelimit=` of a mount, `file:PATH?offset=` for every
//! command.

use crate::common::{Place, needs_fuse, write_and_fsync};
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;

/// A file of 100 MiB with bytes other than zero, which no image may change.
fn container(place: &Place) {
    std::fs::write(place.path("big"), vec![0xa5; 100 * MIB]).unwrap();
}

fn window(at: usize) -> String {
    format!("file:big?offset={}&sizelimit={}", at * MIB, 32 * MIB)
}

/// Whether the bytes of the file outside the windows at `starts` are unchanged.
fn is_untouched(place: &Place, starts: &[usize]) -> bool {
    let bytes = std::fs::read(place.path("big")).unwrap();
    assert_eq!(bytes.len(), 100 * MIB);
    let inside = |mib: usize| starts.iter().any(|start| (*start..start + 32).contains(&mib));
    let untouched = vec![0xa5; MIB];
    (0..100).filter(|mib| !inside(*mib)).all(|mib| bytes[mib * MIB..][..MIB] == untouched)
}

#[test]
fn a_window_is_an_image_for_every_command() {
    let place = Place::new();
    container(&place);
    let uri = window(10);
    place.kedge(["info", &uri]).refused(1, &["no valid superblock", "big"]);
    place.kedge(["mkfs", "-f", "--size", "64M", &uri]).refused(1, &["has 33554432 bytes"]);
    std::fs::create_dir(place.path("tree")).unwrap();
    std::fs::write(place.path("tree/file"), b"inside").unwrap();
    place.kedge(["mkfs", "-f", "-L", "part", "--from", "tree", &uri]).ok();
    let info = place.info(&uri);
    assert_eq!((&info["size_bytes"], &info["label"]), (&(32 * MIB).into(), &"part".into()));
    assert!(place.kedge(["dump", &uri]).ok().contains("slot 0"));
    assert!(place.kedge(["dump", "--tree", &uri]).ok().contains("(1 Inode 0)"));
    place.kedge(["tune", "-L", "window", &uri]).ok();
    assert_eq!(place.info(&uri)["label"], "window");
    assert_eq!(place.kedge(["cat", &format!("{uri}:/file")]).ok(), "inside");
    place.kedge(["cp", "tree/file", &format!("{uri}:/copy")]).ok();
    assert_eq!(place.kedge(["ls", &format!("{uri}:/")]).ok(), "copy\nfile\n");
    assert_eq!(place.kedge(["scrub", &uri]).code, 0);
    assert_eq!(place.kedge(["fsck", "-f", "-y", &uri]).code, 0);
    // The whole file and other windows have no image.
    place.kedge(["info", "big"]).refused(1, &["no valid superblock"]);
    place.kedge(["info", &window(11)]).refused(1, &["no valid superblock"]);
    assert!(is_untouched(&place, &[10]));
}

/// An image grows to the end of its window, and the window does not grow.
#[test]
fn an_image_grows_within_its_window() {
    let place = Place::new();
    container(&place);
    let uri = window(10);
    place.kedge(["mkfs", "-f", "--size", "16M", &uri]).ok();
    place.kedge(["resize", &uri]).ok();
    assert_eq!(place.info(&uri)["size_bytes"], 32 * MIB);
    place.kedge(["resize", &uri, "33M"]).refused(1, &["33554432 bytes", "34603008 are wanted"]);
    // The file around the window keeps its size.
    place.kedge(["resize", &uri, "20M"]).ok();
    assert_eq!(place.info(&uri)["size_bytes"], 20 * MIB);
    assert_eq!(place.kedge(["fsck", "-f", &uri]).code, 0);
    assert!(is_untouched(&place, &[10]));
}

#[test]
fn bad_windows_are_refused_by_number() {
    let place = Place::new();
    container(&place);
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.run("info file:big?offset=512").refused(2, &["offset=512", "multiple of 4096"]);
    place.run("fsck file:big?sizelimit=0").refused(16, &["sizelimit=0"]);
    place.run("info file:big?offset=100M").refused(1, &["offset=104857600", "104857600 bytes"]);
    place.run("info file:big?offset=90M&sizelimit=16M").refused(1, &["sizelimit=16777216", "10485760 bytes"]);
    place.run("mkfs --size 32M file:none?offset=0").refused(1, &["none", "the file must exist"]);
    place.run("mount -o offset=100 big mnt").refused(2, &["offset=100", "multiple of 4096"]);
    place.run("mount -o offset=x big mnt").refused(2, &["offset=x", "is not a size"]);
    place.run("mount -o offset=4K nbd://host mnt").refused(2, &["no file or block device"]);
    assert!(is_untouched(&place, &[]));
}

#[test]
fn two_windows_of_a_file_are_mounted_at_once() {
    needs_fuse!();
    let place = Place::new();
    container(&place);
    for at in [0, 48] {
        place.kedge(["mkfs", "-f", &window(at)]).ok();
    }
    for dir in ["mnt", "other", "third"] {
        std::fs::create_dir(place.path(dir)).unwrap();
    }
    let words = |at: usize| format!("fuse,offset={at}M,sizelimit=32M");
    place.kedge(["mount", "-o", &words(0), "big", "mnt"]).ok();
    place.kedge(["mount", "-o", &words(48), "big", "other"]).ok();
    write_and_fsync(&place.path("mnt/file"), b"first");
    write_and_fsync(&place.path("other/file"), b"second");
    place.kedge(["fsck", &window(0)]).refused(8, &["is mounted on", "mnt"]);
    // A remount may name the window in force, and no other.
    place.kedge(["remount", "mnt", "-o", "offset=0,noatime"]).ok();
    place.kedge(["remount", "mnt", "-o", "offset=4K"]).refused(2, &["offset"]);
    place.run("umount other").ok();
    place.unmount_and_check(&window(0));
    assert_eq!(place.kedge(["cat", &format!("{}:/file", window(48))]).ok(), "second");
    assert_eq!(place.kedge(["cat", &format!("{}:/file", window(0))]).ok(), "first");
    assert!(is_untouched(&place, &[0, 48]));
    // Cut the file, which ended with the window, below the size of the image.
    let file = std::fs::OpenOptions::new().write(true).open(place.path("big")).unwrap();
    file.set_len(60 * MIB as u64).unwrap();
    file.write_all_at(&[0], 0).unwrap();
    place.kedge(["info", &window(48)]).refused(1, &["sizelimit=33554432"]);
}
