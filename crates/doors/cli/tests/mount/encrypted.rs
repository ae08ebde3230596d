//! Encrypted images with every command: keys from files and descriptors, wrong keys, changes of
//! slots, and which bytes are on the medium.

use crate::common::{Place, needs_fuse, write_and_fsync};
use std::fs;

/// A text that the medium must not hold.
const TEXT: &str = "nothing to see here, move along, nothing to see here";

fn keys(place: &Place) {
    fs::write(place.path("key"), "open sesame").unwrap();
    fs::write(place.path("other"), "open barley").unwrap();
}

fn holds(place: &Place, file: &str, text: &str) -> bool {
    let bytes = fs::read(place.path(file)).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn every_command_opens_an_encrypted_image_with_its_key() {
    let place = Place::new();
    keys(&place);
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/a-name-to-look-for"), TEXT.repeat(200)).unwrap();
    place.run("mkfs --encrypt --key-file key --size 32M -L secret --from tree disk.kedge").ok();
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), (32 << 20) + (64 << 10));
    assert!(!holds(&place, "disk.kedge", TEXT) && !holds(&place, "disk.kedge", "a-name-to-look-for"));

    let shown: serde_json::Value = serde_json::from_str(&place.run("info --json disk.kedge").ok()).unwrap();
    assert_eq!(shown["state"], "encrypted");
    assert_eq!(shown["encryption"]["slots"].as_array().unwrap().len(), 1);
    assert_eq!(shown["label"], serde_json::Value::Null);
    let info = "info --key-file key --json disk.kedge";
    let shown: serde_json::Value = serde_json::from_str(&place.run(info).ok()).unwrap();
    assert_eq!((&shown["label"], &shown["size_bytes"]), (&"secret".into(), &(32 << 20).into()));

    let listed = place.run("--key-file key ls disk.kedge:/").ok();
    assert_eq!(listed, "a-name-to-look-for\n");
    let read = place.run("cat --key-file key disk.kedge:/a-name-to-look-for").ok();
    assert_eq!(read, TEXT.repeat(200));
    place.run("cp --key-file key tree/a-name-to-look-for disk.kedge:/copy").ok();
    place.run("tune --key-file key -L renamed disk.kedge").ok();
    assert!(place.run("dump --key-file key disk.kedge").ok().contains("renamed"));
    assert_eq!(place.run("fsck --key-file key -f -y disk.kedge").code, 0);
    assert_eq!(place.run("scrub --key-file key disk.kedge").code, 0);
    place.run("resize --key-file key disk.kedge 48M").ok();
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), (48 << 20) + (64 << 10));
    let shown: serde_json::Value = serde_json::from_str(&place.run(info).ok()).unwrap();
    assert_eq!(shown["size_bytes"], 48 << 20);
    place.run("resize --key-file key disk.kedge 24M").ok();
    assert_eq!(fs::metadata(place.path("disk.kedge")).unwrap().len(), (24 << 20) + (64 << 10));
    let read = place.run("cat --key-file key disk.kedge:/a-name-to-look-for").ok();
    assert_eq!(read, TEXT.repeat(200));
    assert_eq!(place.run("fsck --key-file key -f disk.kedge").code, 0);
    assert!(!holds(&place, "disk.kedge", TEXT) && !holds(&place, "disk.kedge", "renamed"));
}

#[test]
fn wrong_keys_and_damaged_headers_are_named() {
    let place = Place::new();
    keys(&place);
    fs::write(place.path("empty"), "").unwrap();
    place.run("mkfs --encrypt --key-file key --size 32M disk.kedge").ok();
    place.run("ls --key-file other disk.kedge:/").refused(1, &["disk.kedge", "the key opens no slot"]);
    place.run("ls --key-file none disk.kedge:/").refused(1, &["open the key file none"]);
    place.run("ls --key-file empty disk.kedge:/").refused(1, &["empty is empty"]);
    place.run("fsck --key-file other disk.kedge").refused(8, &["the key opens no slot"]);
    place.run("key list tree").refused(1, &["tree"]);
    place.run("mkfs --size 32M plain.kedge").ok();
    place.run("key list plain.kedge").refused(1, &["plain.kedge is not encrypted"]);
    place
        .run("mkfs --size 32M disk.kedge")
        .refused(1, &["holds an encrypted KedgeFS image", "-f overwrites"]);
    let good = fs::read(place.path("disk.kedge")).unwrap();
    // One valid copy of the header suffices. If both are damaged, or the image is truncated, the
    // error names this.
    let mut bad = good.clone();
    bad[..4096].fill(0x55);
    fs::write(place.path("disk.kedge"), &bad).unwrap();
    place.run("ls --key-file key disk.kedge:/").ok();
    bad[61440 + 100] ^= 1;
    fs::write(place.path("disk.kedge"), &bad).unwrap();
    place.run("ls --key-file key disk.kedge:/").refused(1, &["damaged header", "wrong checksum"]);
    fs::write(place.path("disk.kedge"), &good[..60 << 10]).unwrap();
    place.run("ls --key-file key disk.kedge:/").refused(1, &["truncated"]);
    // An image without encryption that replaces the encrypted one leaves no copy of its header.
    fs::write(place.path("disk.kedge"), &good).unwrap();
    place.run("mkfs -f disk.kedge").ok();
    place.run("ls disk.kedge:/").ok();
    assert!(!holds(&place, "disk.kedge", "KEDGECRY"));
}

#[test]
fn keys_are_added_changed_and_removed() {
    let place = Place::new();
    keys(&place);
    fs::write(place.path("third"), "open rye").unwrap();
    place.run("mkfs --encrypt --key-file key --size 32M disk.kedge").ok();
    place.run("key remove --key-file key disk.kedge").refused(1, &["key slot 0 is the last one"]);
    place.run("key add --key-file other --new-key-file third disk.kedge").refused(1, &["opens no slot"]);
    let added = place.run("key add --key-file key --new-key-file other disk.kedge").ok();
    assert!(added.contains("key slot 1 is new"), "{added}");
    place.run("ls --key-file other disk.kedge:/").ok();
    place.run("key change --key-file other --new-key-file third disk.kedge").ok();
    place.run("ls --key-file other disk.kedge:/").refused(1, &["opens no slot"]);
    place.run("ls --key-file third disk.kedge:/").ok();
    place.run("key remove --key-file third --slot 7 disk.kedge").refused(1, &["key slot 7 is not used"]);
    place.run("key remove --key-file key disk.kedge").ok();
    place.run("ls --key-file key disk.kedge:/").refused(1, &["opens no slot"]);
    let list: serde_json::Value =
        serde_json::from_str(&place.run("key list --json disk.kedge").ok()).unwrap();
    assert_eq!(list["slots"].as_array().unwrap().len(), 1);
    assert_eq!(list["slots"][0]["slot"], 1);
}

/// A power failure comes between the two writes of a removal. The repetition is refused, because
/// the key opens no slot of the newer copy of the header.
#[test]
fn a_repeated_removal_overwrites_the_copy_that_an_interrupted_one_left() {
    let place = Place::new();
    keys(&place);
    place.run("mkfs --encrypt --key-file key --size 32M disk.kedge").ok();
    place.run("key add --key-file key --new-key-file other disk.kedge").ok();
    // The command writes the copy at the end of the header's area first.
    let (first, last) = (60 << 10..64 << 10, 0..4096);
    let before = fs::read(place.path("disk.kedge")).unwrap();
    place.run("key remove --key-file key disk.kedge").ok();
    let mut image = fs::read(place.path("disk.kedge")).unwrap();
    image[last.clone()].copy_from_slice(&before[last.clone()]);
    fs::write(place.path("disk.kedge"), &image).unwrap();
    let repeated = place.run("key remove --key-file key disk.kedge");
    assert!(repeated.out.contains("an earlier change of its keys was interrupted"), "{}", repeated.out);
    repeated.refused(1, &["opens no slot"]);
    let mut image = fs::read(place.path("disk.kedge")).unwrap();
    assert!(image[first.clone()] == image[last.clone()]);
    // Without the other copy, too, only the key that was kept opens the image.
    image[first].fill(0);
    fs::write(place.path("disk.kedge"), &image).unwrap();
    place.run("ls --key-file key disk.kedge:/").refused(1, &["opens no slot"]);
    place.run("ls --key-file other disk.kedge:/").ok();
}

#[test]
fn an_encrypted_image_is_mounted_and_survives_a_kill() {
    needs_fuse!();
    let place = Place::new();
    keys(&place);
    place.run("mkfs --encrypt --key-file key --size 64M disk.kedge").ok();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount -o key-file=other disk.kedge mnt").refused(1, &["opens no slot"]);
    place.run("mount -o key-file=key disk.kedge mnt").ok();
    write_and_fsync(&place.path("mnt/file"), TEXT.as_bytes());
    let command =
        fs::read(format!("/proc/{}/cmdline", crate::common::pid(&place, "mnt").as_raw_nonzero())).unwrap();
    let command = String::from_utf8_lossy(&command);
    assert!(command.contains("--key-fd") && !command.contains("sesame"), "{command}");
    place.run("key list disk.kedge").ok();
    place.run("key remove --key-file key disk.kedge").refused(1, &["is mounted on"]);
    crate::common::kill(&place, "mnt");
    place.run("umount mnt");
    place.run("mount --key-file key disk.kedge mnt").ok();
    assert_eq!(fs::read_to_string(place.path("mnt/file")).unwrap(), TEXT);
    place.unmount();
    assert_eq!(place.run("fsck --key-file key -f disk.kedge").code, 0);
    assert!(!holds(&place, "disk.kedge", TEXT));
}
