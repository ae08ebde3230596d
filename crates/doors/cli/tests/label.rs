//! Images named by their label or uuid. These tests are a program of their own, because a mount
//! namespace of one test holds the mounts of all tests that run at the time.

#![allow(clippy::unwrap_used)]

mod common;
use common::{LET_GO, Place, needs_fuse, tool};
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

const NEEDS_ROOT: &str = "only root has block devices to look for";

/// A loop device with an image, detached on drop.
struct Loop<'a> {
    place: &'a Place,
    device: String,
}

impl Loop<'_> {
    fn new<'a>(place: &'a Place, image: &str, label: &str) -> Loop<'a> {
        place.run(&format!("mkfs --size 16M -L {label} {image}")).ok();
        let mut command = place.command("losetup");
        command.args(["--find", "--show", image]);
        Loop { place, device: tool(command, "mount").trim().to_owned() }
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        let mut command = self.place.command("losetup");
        if let Err(e) = command.args(["--detach", &self.device]).status() {
            eprintln!("losetup --detach {}: {e}", self.device);
        }
    }
}

/// A label that no other test uses.
fn label(place: &Place) -> String {
    format!("kedge-{}", place.path("").file_name().unwrap().to_string_lossy().replace('.', ""))
}

#[test]
fn a_device_is_found_by_its_label_and_its_uuid() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let name = label(&place);
    let one = Loop::new(&place, "one.kedge", &name);
    fs::create_dir(place.path("mnt")).unwrap();
    let uuid = place.info("one.kedge")["uuid"].as_str().unwrap().to_owned();
    for tag in [format!("LABEL={name}"), format!("UUID={uuid}"), format!("UUID={}", uuid.to_uppercase())] {
        place.run(&format!("mount {tag} mnt")).ok();
        assert_eq!(place.info("mnt")["mount"]["image"], one.device.as_str(), "{tag}");
        place.unmount();
    }
    place.run(&format!("mount LABEL={name}x mnt")).refused(1, &["no block device", "by its path"]);
    place.run("mount LABEL= mnt").refused(1, &["LABEL= names no image"]);
    // `./LABEL=…` names a file and not a label.
    place.run(&format!("mkfs --size 16M ./LABEL={name}")).ok();
    place.run(&format!("mount ./LABEL={name} mnt")).ok();
    assert!(place.info("mnt")["mount"]["image"].as_str().unwrap().ends_with(&format!("/LABEL={name}")));
    place.unmount();

    let two = Loop::new(&place, "two.kedge", &name);
    place.run(&format!("mount LABEL={name} mnt")).refused(1, &["2 devices", &one.device, &two.device]);
    place.run(&format!("mount UUID={uuid} mnt")).ok();
    place.unmount_and_check(&one.device);
}

/// A program that reads a device while a mount writes to it leaves old pages in the device's page
/// cache. `kedge umount` once read such a page as the mount's last write.
#[test]
fn a_device_is_not_read_through_its_page_cache() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let one = Loop::new(&place, "one.kedge", "before");
    // The device's pages stay cached while the device is open.
    let mut cached = fs::File::open(&one.device).unwrap();
    cached.read_exact(&mut [0; 1 << 20]).unwrap();
    // Change the file without the device. The device's page cache is then stale, as after direct IO
    // that races with the read.
    place.run("tune --label after one.kedge").ok();
    assert_eq!(place.info(&one.device)["label"], "after");
}

/// mount(8) resolves a label by the links in `/dev/disk` before it calls a helper.
#[test]
fn mount_8_finds_a_label_by_its_link() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let name = label(&place);
    let one = Loop::new(&place, "one.kedge", &name);
    for dir in ["mnt", "helpers", "over"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_kedge"), place.path("helpers/mount.kedgefs")).unwrap();
    fs::write(
        place.path("fstab"),
        format!("LABEL={name} {} kedgefs noauto 0 0", place.path("mnt").display()),
    )
    .unwrap();
    // A /dev with one more link, in its own mount namespace.
    let script = "set -eu
        mount -t tmpfs none over
        mkdir -p over/work over/dev/disk/by-label
        mount --bind helpers /sbin
        mount --bind fstab /etc/fstab
        mount -t kedgefs LABEL=$NAME mnt 2>&1 && exit 1 || true
        ln -s $DEVICE over/dev/disk/by-label/$NAME
        mount -t overlay none -o lowerdir=/dev,upperdir=over/dev,workdir=over/work /dev
        trap 'umount mnt' EXIT
        mount -t kedgefs LABEL=$NAME mnt;   findmnt -no SOURCE mnt
        mount -o remount,commit=9 LABEL=$NAME
        $K info mnt | grep -c 'commit  *9'
        umount mnt
        mount mnt;                          findmnt -no SOURCE mnt";
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &format!("{LET_GO}{script}")]);
    command.env("K", env!("CARGO_BIN_EXE_kedge")).env("NAME", &name).env("DEVICE", &one.device);
    let said = tool(command, "mount");
    let said: Vec<&str> = said.lines().collect();
    assert!(said[0].contains("can't find LABEL="), "{said:?}");
    assert_eq!(said[1..], [one.device.as_str(), "1", one.device.as_str()]);
    assert_eq!(place.run(&format!("fsck {}", one.device)).code, 0);
}
