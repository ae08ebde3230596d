//! Images that another process serves: every command that names an image accepts a URI.
//!
//! The server (`kedge_device::sim`) runs in this process, so that nothing needs to be installed.

use crate::common::{Place, Run, needs_fuse, until, write_and_fsync};
use kedge_device::MemDevice;
use kedge_device::sim::{Manners, NbdServer};
use kedgefs::{FileSystem, MountOptions};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;

/// Starts a server with its socket in the test's directory. Returns the server and the URI of its
/// export.
fn serve(place: &Place) -> (NbdServer, String) {
    let device = Arc::new(MemDevice::new(SIZE));
    let server = NbdServer::serve(&place.path("socket"), device, Manners::default()).unwrap();
    let uri = server.uri();
    (server, uri)
}

#[test]
fn an_export_is_an_image_for_every_command() {
    let place = Place::new();
    let (_server, uri) = serve(&place);
    place.kedge(["info", &uri]).refused(1, &["no valid superblock", &uri]);
    place.kedge(["mkfs", "--size", "1G", &uri]).refused(1, &["has 67108864 bytes", &uri]);
    let made = place.kedge(["mkfs", "-L", "far", &uri]).ok();
    assert!(made.contains("far") && made.contains(&uri), "{made}");
    place.kedge(["mkfs", &uri]).refused(1, &["holds a KedgeFS image", "-f"]);
    // A path relative to the working directory also works.
    let info = place.info("nbd+unix:///?socket=socket");
    assert_eq!(info["size_bytes"], SIZE);
    assert_eq!(info["label"], "far");
    assert!(place.kedge(["dump", &uri]).ok().contains("slot 0"));
    assert!(place.kedge(["dump", "--log", &uri]).ok().contains("the log ends"));
    assert!(place.kedge(["dump", "--tree", &uri]).ok().contains("(1 Inode 0)"));
    let report = place.kedge(["fsck", "-y", "-f", &uri]);
    assert_eq!(report.code, 0, "{}{}", report.out, report.err);
}

#[test]
fn what_is_inside_an_export_is_reached_without_a_mount() {
    let place = Place::new();
    let (_server, uri) = serve(&place);
    std::fs::create_dir(place.path("tree")).unwrap();
    std::fs::write(place.path("tree/file"), b"from a directory").unwrap();
    place.kedge(["mkfs", "--from", "tree", &uri]).ok();
    let inside = |path: &str| format!("{uri}:{path}");
    place.kedge(["mkdir", &inside("/dir")]).ok();
    place.kedge(["cp", &inside("/file"), &inside("/dir/copy")]).ok();
    place.kedge(["cp", "tree/file", &inside("/dir/another")]).ok();
    assert_eq!(place.kedge(["ls", &inside("/dir")]).ok(), "another\ncopy\n");
    assert_eq!(place.kedge(["cat", &inside("/dir/copy")]).ok(), "from a directory");
    place.kedge(["cp", &inside("/dir/another"), "back"]).ok();
    assert_eq!(std::fs::read(place.path("back")).unwrap(), b"from a directory");
    place.kedge(["cat", &inside("/none")]).refused(1, &["/none", &uri]);
    assert_eq!(place.kedge(["fsck", &uri]).code, 0);
}

#[test]
fn nonsense_is_a_mistake_in_usage() {
    let place = Place::new();
    place.run("mkfs nbd:host").refused(2, &["nbd:host", "// is missing"]);
    place.run("info nbd+unix:///x").refused(2, &["?socket=PATH is missing"]);
    place.run("fsck nbds://host/x").refused(16, &["TLS is not spoken"]);
    place.run("dump http://host/x").refused(2, &["nothing is known of http"]);
    for (uri, said) in [
        ("rbd:", "rbd:POOL/IMAGE"),
        ("rbd:pool", "rbd:POOL/IMAGE"),
        ("rbd:/image", "no name of a pool"),
        ("rbd:pool/", "no name of an image"),
        ("rbd:pool/space/image", "no name of an image"),
        ("rbd:pool/image@", "no name of a snapshot"),
        ("rbd:pool/image?user=me", "there are id, conf, timeout"),
        ("rbd:pool/image?id=", "no name of a user"),
        ("rbd:pool/image?timeout=0", "1 to 3600 seconds"),
        ("rbd:pool/image?timeout=5&timeout=6", "timeout is there twice"),
        ("rbd:pool/im%zzage", "two hexadecimal digits"),
    ] {
        place.kedge(["info", uri]).refused(2, &[uri, said]);
    }
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount nbd://host:0/ mnt").refused(2, &["is no port"]);
    place.run("mount nbd+unix:///?socket=none mnt").refused(1, &["none", "No such file"]);
    place.run("fsck nbd+unix:///?socket=none").refused(8, &["none", "No such file"]);
}

/// Ceph's libraries are loaded only when an RBD image is named.
#[test]
fn a_missing_or_old_library_is_named_with_its_package() {
    let place = Place::new();
    let info = |image: &str| {
        let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
        command.args(["info", image]).env("LD_LIBRARY_PATH", place.path(""));
        let output = crate::common::output_of(command).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    };
    let uri = "rbd:pool/image";
    std::fs::write(place.path("librados.so.2"), b"").unwrap();
    info(uri).refused(1, &[uri, "librados.so.2", "file too short", "apt-get install librados2"]);
    // Put a library of another kind in place of Ceph's.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let other = other.into_iter().find(|path| path.contains("libgcc_s")).unwrap();
    for name in ["librados.so.2", "librbd.so.1"] {
        std::fs::copy(other, place.path(name)).unwrap();
    }
    info(uri).refused(1, &[uri, "librados is too old", "rados_create", "Ceph 16"]);
    place.run("mkfs --size 16M disk.kedge").ok();
    info("disk.kedge").ok();
}

#[test]
fn an_export_is_mounted_written_and_found_again() {
    needs_fuse!();
    let place = Place::new();
    let (_server, uri) = serve(&place);
    place.kedge(["mkfs", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    std::fs::create_dir(place.path("other")).unwrap();
    let mounted = place.kedge(["mount", &uri, "mnt"]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    if rustix::process::geteuid().is_root() {
        assert!(mounted.err.contains("plain fuse mount"), "{}", mounted.err);
    }
    write_and_fsync(&place.path("mnt/file"), b"far away");
    // Every command reports that the image is in use, whatever spelling of the URI names it.
    let same = format!("{uri}&timeout=9");
    for uri in [&uri, &same] {
        match rustix::process::geteuid().is_root() {
            // For root the mount succeeds: the second directory shows the same file system.
            true => {
                place.kedge(["mount", uri, "other"]).ok();
                assert_eq!(std::fs::read(place.path("other/file")).unwrap(), b"far away");
                place.run("umount other").ok();
            }
            false => place.kedge(["mount", uri, "other"]).refused(1, &["in use", "mnt"]),
        }
        place.kedge(["fsck", uri]).refused(8, &["is mounted on", "mnt"]);
        place.kedge(["mkfs", "-f", uri]).refused(1, &["is mounted on", "mnt"]);
    }
    let info = place.info(&uri);
    assert!(info["mounted_on"].as_str().unwrap().ends_with("/mnt"), "{info}");
    assert!(place.run("stats mnt").ok().contains("transactions"));
    place.unmount_and_check(&uri);
    assert_eq!(place.info(&uri)["clean"], true);
    assert_eq!(place.kedge(["mount", "-o", "fuse,ro", &uri, "mnt"]).ok(), "");
    assert_eq!(std::fs::read(place.path("mnt/file")).unwrap(), b"far away");
    place.unmount();
    place.kedge(["mount", "-o", "fuseblk", &uri, "mnt"]).refused(1, &["no block device"]);
}

/// After the crash the mount and the server have the durable data; other data is lost.
#[test]
fn a_mounted_export_loses_power_when_it_is_told_to() {
    needs_fuse!();
    let place = Place::new();
    let (_server, uri) = serve(&place);
    place.kedge(["mkfs", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.kedge(["crash", "mount", "nbd+unix:///?socket=socket", "mnt"]).ok();
    write_and_fsync(&place.path("mnt/kept"), b"kept");
    std::fs::File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    std::fs::write(place.path("mnt/lost"), b"lost").unwrap();
    place.run("crash now mnt").ok();
    assert!(!place.path("mnt/lost").exists());
    assert_eq!(std::fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.run("umount mnt").ok();
    assert_eq!(place.kedge(["fsck", &uri]).code, 0);
    assert_eq!(place.kedge(["cat", &format!("{uri}:/kept")]).ok(), "kept");
}

/// The server hangs and later goes on. Every worker of the mount waits for it meanwhile, but the
/// state of the mount can still be read.
#[test]
fn a_device_that_hangs_is_seen() {
    needs_fuse!();
    let place = Place::new();
    let (server, uri) = serve(&place);
    place.kedge(["mkfs", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    let patient = format!("{uri}&timeout=3600");
    let mount = || assert_eq!(place.kedge(["mount", "-o", "fuse,workers=2", &patient, "mnt"]).code, 0);
    mount();
    let files: Vec<_> = (0..4u8).map(|i| (place.path(&format!("mnt/{i}")), vec![i; 256 << 10])).collect();
    for (i, (path, bytes)) in files.iter().enumerate() {
        write_and_fsync(path, bytes);
        std::fs::write(place.path(&format!("copy-{i}")), bytes).unwrap();
    }
    let info = place.info("mnt");
    assert_eq!(info["device_state"], "answers", "{info}");
    assert!(
        info["device_requests"]["answered_late"].is_u64() && info["device_requests"]["late"] == 0,
        "{info}"
    );
    // Remount, so that nothing is cached, not even the root's attributes in the kernel.
    place.unmount();
    mount();
    server.hold();
    // Read in other processes. If this process had files open on the mount, each child would first
    // close its copies of them, which is a request too.
    let read = |i| place.command("cmp").args([format!("mnt/{i}"), format!("copy-{i}")]).spawn().unwrap();
    let readers: Vec<_> = (0..4).map(read).collect();
    // All readers need the same node of the tree, which is read once, so that only one device
    // request waits.
    until("a request is late", || place.info("mnt")["device_requests"]["late"].as_u64().unwrap() >= 1);
    let info = place.info("mnt");
    let told = info["device_state"].as_str().unwrap();
    assert!(
        told.starts_with("does not answer since 20") && told.contains("the oldest, a read, for "),
        "{told}"
    );
    assert!(info["device_requests"]["oldest_ns"].as_u64().unwrap() >= 5_000_000_000, "{info}");
    assert_eq!((&info["state"], &info["shut_down"]), (&"mounted".into(), &serde_json::Value::Null));
    let stats = place.run("stats mnt").ok();
    assert!(stats.starts_with("THE DEVICE does not answer since 20"), "{stats}");
    let metrics = place.run("stats --prometheus mnt").ok();
    let metric = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(metric("kedgefs_state_device_late"), 1);
    assert!(metric("kedgefs_device_requests_late") >= 1, "{metrics}");
    assert!(metric("kedgefs_device_requests_oldest_ns") >= 5_000_000_000, "{metrics}");
    assert!(metrics.contains("# TYPE kedgefs_device_requests_late gauge\n"), "{metrics}");
    assert!(metrics.contains("# TYPE kedgefs_device_requests_answered_late counter\n"), "{metrics}");
    let picture = place.run("top --once mnt").ok();
    assert!(picture.contains("\nTHE DEVICE does not answer since 20"), "{picture}");
    server.release();
    readers.into_iter().for_each(|mut reader| assert!(reader.wait().unwrap().success()));
    // A read-ahead of the engine may outlive the readers.
    until("no request is outstanding", || {
        let info = place.info("mnt");
        info["device_state"] == "answers" && info["device_requests"]["outstanding"] == 0
    });
    let info = place.info("mnt");
    assert!(info["device_requests"]["answered_late"].as_u64().unwrap() >= 1, "{info}");
    place.unmount_and_check(&uri);
}

/// A device that hangs longer than the mount option permits: the outcome of the requests in flight
/// is unknown, and the file system shuts down. The option overrides the limit in the URI.
#[test]
fn a_device_that_hangs_for_too_long_is_given_up() {
    needs_fuse!();
    let place = Place::new();
    let (server, uri) = serve(&place);
    place.kedge(["mkfs", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    let patient = format!("{uri}&timeout=3600");
    assert_eq!(place.kedge(["mount", "-o", "fuse,nbd_timeout=1", &patient, "mnt"]).code, 0);
    assert!(place.info("mnt")["device"].as_str().unwrap().ends_with("timeout=1"));
    // Naming the value in force is no change.
    place.run("remount -o nbd_timeout=1 mnt").ok();
    place.run("remount -o nbd_timeout=2 mnt").refused(2, &["nbd_timeout cannot change", "in force is 1"]);
    place.run("remount -o rbd_timeout=1 mnt").refused(2, &["rbd_timeout cannot change"]);
    write_and_fsync(&place.path("mnt/kept"), b"kept");
    server.hold();
    let file = std::fs::File::create(place.path("mnt/lost"));
    let e = file.and_then(|file| file.sync_all()).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
    let info = place.info("mnt");
    assert_eq!(info["state"], "shut down", "{info}");
    assert!(info["shut_down"].as_str().unwrap().contains("outcome"), "{info}");
    assert_eq!(info["device_state"], "answers", "with errors, at once: {info}");
    let stats = place.run("stats mnt").ok();
    assert!(stats.starts_with("SHUT DOWN since 20") && stats.contains("outcome"), "{stats}");
    server.release();
    place.run("umount mnt").refused(1, &["had shut down"]);
    assert_eq!(place.kedge(["mount", "-o", "fuse", &uri, "mnt"]).code, 0);
    assert_eq!(std::fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.unmount_and_check(&uri);
}

/// Commands for mounted images work on a mounted export too, because the server accepts several
/// clients.
#[test]
fn a_mounted_export_is_scrubbed_and_not_changed() {
    needs_fuse!();
    let place = Place::new();
    let (_server, uri) = serve(&place);
    place.kedge(["mkfs", "-L", "far", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    assert_eq!(place.kedge(["mount", "-o", "fuse", &uri, "mnt"]).code, 0);
    write_and_fsync(&place.path("mnt/file"), b"far away");
    for target in ["mnt", &uri] {
        let report = place.kedge(["scrub", "--json", target]).ok();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["mounted"], true, "{report:#}");
    }
    place.kedge(["tune", "-L", "near", &uri]).refused(1, &["is mounted on", "mnt"]);
    place.unmount_and_check(&uri);
    place.kedge(["tune", "-L", "near", &uri]).ok();
    assert_eq!(place.info(&uri)["label"], "near");
    assert!(place.kedge(["scrub", &uri]).ok().ends_with("clean\n"));
}

/// Time limits apply only to remote images.
#[test]
fn a_limit_that_makes_no_sense_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.run("mkfs --size 16M disk.kedge").ok();
    for (words, said) in [
        ("-o rbd_timeout=5 disk.kedge", "disk.kedge is no image of a Ceph cluster"),
        ("-o nbd_timeout=5 disk.kedge", "disk.kedge is no NBD export"),
        ("-o nbd_timeout=5 rbd:pool/image", "rbd:pool/image is no NBD export"),
        ("-o rbd_timeout=5 nbd://host/", "nbd://host/ is no image of a Ceph cluster"),
        ("-o rbd_timeout=0 rbd:pool/image", "from 1 to 3600"),
        ("-o nbd_timeout=3601 nbd://host/", "from 1 to 3600"),
        ("-o rbd_timeout rbd:pool/image", "rbd_timeout=SECONDS"),
    ] {
        place.run(&format!("mount {words} mnt")).refused(2, &[said]);
    }
}

/// The server disconnects: the mount returns EIO, and its unmount is no success.
#[test]
fn a_mount_whose_server_is_gone_says_so() {
    needs_fuse!();
    let place = Place::new();
    let device = Arc::new(MemDevice::new(SIZE));
    let server = NbdServer::serve(&place.path("socket"), device.clone(), Manners::default()).unwrap();
    let uri = server.uri();
    place.kedge(["mkfs", &uri]).ok();
    std::fs::create_dir(place.path("mnt")).unwrap();
    assert_eq!(place.kedge(["mount", "-o", "fuse", &uri, "mnt"]).code, 0);
    write_and_fsync(&place.path("mnt/kept"), b"kept");
    server.cut();
    let file = std::fs::File::create(place.path("mnt/lost"));
    let e = file.and_then(|file| file.sync_all()).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
    assert!(!place.info("mnt")["shut_down"].is_null());
    // Another host opens the image and leaves it clean. The unmount here still fails, because this
    // mount had shut down.
    let clock = Arc::new(kedge_base::SystemClock::default());
    let other = FileSystem::open(device, clock, MountOptions::default()).unwrap();
    other.close().unwrap();
    place.run("umount mnt").refused(1, &["had shut down"]);
    // The server still runs; a new mount recovers the durable data.
    assert_eq!(place.kedge(["mount", "-o", "fuse", &uri, "mnt"]).code, 0);
    assert_eq!(std::fs::read(place.path("mnt/kept")).unwrap(), b"kept");
    place.unmount_and_check(&uri);
}
