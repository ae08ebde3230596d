//! Space that files release is returned to the host of an image file or to a device.

use crate::common::{Place, needs_fuse, tool, until};
use std::fs;
use std::os::unix::fs::MetadataExt;

const LARGE: usize = 40 << 20;

/// Bytes that a file takes on its host.
fn taken(place: &Place, file: &str) -> u64 {
    fs::metadata(place.path(file)).unwrap().blocks() * 512
}

fn write_and_delete(place: &Place) {
    crate::common::write_and_fsync(&place.path("mnt/kept"), b"kept");
    crate::common::write_and_fsync(&place.path("mnt/large"), &vec![1; LARGE]);
    fs::remove_file(place.path("mnt/large")).unwrap();
}

fn fstrim(place: &Place) -> String {
    let mut command = place.command("fstrim");
    command.args(["-v", "mnt"]);
    tool(command, "util-linux")
}

#[test]
fn an_image_file_shrinks_on_request() {
    needs_fuse!();
    let place = Place::after("mount --create 128M disk.kedge mnt");
    let empty = taken(&place, "disk.kedge");
    write_and_delete(&place);
    assert!(taken(&place, "disk.kedge") >= empty + LARGE as u64, "nothing goes back unasked");
    // The kernel releases the inode a little later.
    until("the image has shrunk", || {
        let said = fstrim(&place);
        assert!(said.contains("mnt") && said.contains("trimmed"), "{said}");
        taken(&place, "disk.kedge") < empty + (4 << 20)
    });
    // As on ext4, a range below one block is an error.
    for len in ["1", "4095"] {
        let refused = place.command("fstrim").args(["-l", len, "mnt"]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("Invalid argument"), "{said}");
    }
    let said = place.run("trim mnt").ok();
    assert!(said.starts_with("mnt: ") && said.trim_end().ends_with("given back"), "{said}");
    assert_eq!(place.run("trim --min 1T mnt").ok(), "mnt: 0 bytes given back\n");
    assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.unmount_and_check("disk.kedge");
    place.run("trim mnt").refused(1, &["mnt is not a mount of KedgeFS"]);
    place.run("mount -o ro disk.kedge mnt").ok();
    place.run("trim mnt").refused(1, &["trim mnt", "Read-only"]);
    place.unmount();
}

#[test]
fn discard_gives_back_without_a_request() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o discard,commit=1 disk.kedge mnt");
    assert_eq!(place.info("mnt")["options"]["discard"], true);
    let empty = taken(&place, "disk.kedge");
    write_and_delete(&place);
    until("the image has shrunk", || taken(&place, "disk.kedge") < empty + (4 << 20));
    place.run("remount mnt -o nodiscard").ok();
    assert_eq!(place.info("mnt")["options"]["discard"], false);
    write_and_delete(&place);
    fs::File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    assert!(taken(&place, "disk.kedge") >= empty + LARGE as u64 / 2, "{}", taken(&place, "disk.kedge"));
    assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.unmount_and_check("disk.kedge");
}

/// A loop device passes a discard on to its file.
#[test]
fn a_device_gets_its_space_back() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        kedge_base::skip::note("only root has devices to discard on");
        return;
    }
    let place = Place::new();
    fs::File::create(place.path("backing")).unwrap().set_len(128 << 20).unwrap();
    let losetup = |args: &[&str]| {
        let mut command = place.command("losetup");
        command.args(args);
        tool(command, "mount").trim().to_owned()
    };
    let device = losetup(&["--find", "--show", "backing"]);
    place.run(&format!("mkfs {device}")).ok();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&format!("mount {device} mnt")).ok();
    let empty = taken(&place, "backing");
    write_and_delete(&place);
    assert!(taken(&place, "backing") >= empty + LARGE as u64);
    until("the device has its space back", || {
        place.run("trim mnt").ok();
        taken(&place, "backing") < empty + (4 << 20)
    });
    assert_eq!(fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.unmount_and_check(&device);
    losetup(&["--detach", &device]);
}
