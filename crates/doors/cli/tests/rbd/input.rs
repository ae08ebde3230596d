//! Mistakes of users, and clusters that do not respond: each gives one clear line, in bounded time.

use crate::common::{Place, write_and_fsync};
use crate::{Host, cluster, directory, mkfs, until, uri};
use kedge_ceph::{Cluster, USER};
use kedge_sim::writers::{Writers, verify_after};
use rustix::process::{Signal, kill_process};
use std::path::{Path, PathBuf};

/// Runs a command that must be refused with these words.
#[track_caller]
fn refused(host: &Host, words: &[&str], code: i32, said: &[&str]) {
    host.kedge(words).refused(code, said);
}

/// Writes the configuration with additional settings to a new file.
fn conf_with(cluster: &Cluster, place: &Place, name: &str, settings: &str) -> PathBuf {
    let conf = std::fs::read_to_string(cluster.conf()).unwrap();
    let path = place.path(name);
    std::fs::write(&path, format!("{conf}\n[global]\n{settings}\n")).unwrap();
    path
}

#[test]
fn what_is_not_there_or_not_allowed_is_named() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let host = Host::new(&cluster, "alpha");
    let (mnt, conf) = (directory(&place, "mnt"), cluster.conf().display().to_string());
    let mnt = mnt.to_str().unwrap();
    let mount = |uri: &str, said: &[&str]| refused(&host, &["mount", uri, mnt], 1, said);
    mount(
        &format!("rbd:nopool/x?id={USER}&conf={conf}"),
        &["rbd:nopool/x", "pool \"nopool\"", "No such file"],
    );
    mount(&format!("rbd:rbd/none?id={USER}&conf={conf}"), &["rbd:rbd/none", "does not exist"]);
    mount(&format!("rbd:rbd/none?id=nobody&conf={conf}"), &["client.nobody"]);
    mount("rbd:rbd/none?conf=/nonexistent", &["/nonexistent", "No such file"]);
    // Use a key that the cluster does not know.
    let keys = place.path("keys");
    let mut forge = cluster.command("ceph-authtool");
    forge.arg("-C").arg(&keys).args(["--gen-key", "-n", "client.fs"]);
    assert!(forge.output().unwrap().status.success());
    let other = conf_with(&cluster, &place, "other.conf", &format!("keyring = {}", keys.display()));
    let wrong = format!("rbd:rbd/none?id={USER}&conf={}", other.display());
    mount(&wrong, &["connect as client.fs", "Permission denied"]);
    // Use a monitor that does not exist.
    let other = conf_with(&cluster, &place, "away.conf", "mon_host = [v2:10.77.0.1:9/0]");
    let away = format!("rbd:rbd/none?id={USER}&conf={}&timeout=2", other.display());
    mount(&away, &["connect as client.fs", "timed out"]);
    // Make a user that may not write.
    cluster
        .ceph(&[
            "auth",
            "get-or-create",
            "client.looks",
            "mon",
            "profile rbd",
            "osd",
            "profile rbd-read-only",
        ])
        .unwrap();
    let key = cluster.ceph(&["auth", "get", "client.looks"]).unwrap();
    let looks = place.path("looks");
    std::fs::write(&looks, key).unwrap();
    let conf = conf_with(&cluster, &place, "looks.conf", &format!("keyring = {}", looks.display()));
    mkfs(&host, &uri(&cluster, "guarded"), &["--size", "64M"]);
    let looker = format!("rbd:rbd/guarded?id=looks&conf={}", conf.display());
    mount(&looker, &["rbd:rbd/guarded", "not permitted"]);
}

#[test]
fn images_that_are_not_ours_are_left_alone() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let host = Host::new(&cluster, "alpha");
    let mnt = directory(&place, "mnt");
    let mnt = mnt.to_str().unwrap();
    // Make an image that is empty and lacks the exclusive-lock feature.
    let plain = uri(&cluster, "plain");
    cluster.rbd(&["create", "--size", "64M", "--image-feature", "layering", "rbd/plain"]).unwrap();
    refused(&host, &["mkfs", &plain], 1, &["rbd:rbd/plain", "no exclusive lock", "feature enable"]);
    // Import an image of another file system.
    let file = place.path("ext4");
    let mut make = place.command("mke2fs");
    make.args(["-q", "-t", "ext4"]).arg(&file).arg("32M");
    crate::common::tool(make, "e2fsprogs");
    cluster.rbd(&["import", "--no-progress", file.to_str().unwrap(), "rbd/foreign"]).unwrap();
    let foreign = uri(&cluster, "foreign");
    refused(&host, &["mount", &foreign, mnt], 1, &["rbd:rbd/foreign", "no KedgeFS magic"]);
    refused(&host, &["mkfs", &foreign], 1, &["rbd:rbd/foreign", "ext4", "-f"]);
    // Shrink an image that is not mounted.
    let shrunk = uri(&cluster, "shrunk");
    mkfs(&host, &shrunk, &["--size", "64M"]);
    cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", "32M", "rbd/shrunk"]).unwrap();
    refused(&host, &["mount", &shrunk, mnt], 1, &["rbd:rbd/shrunk", "truncated"]);
    // A snapshot can only be read.
    let owned = uri(&cluster, "owned");
    mkfs(&host, &owned, &["--size", "64M"]);
    cluster.rbd(&["snap", "create", "--no-progress", "rbd/owned@one"]).unwrap();
    let snapshot = owned.replace("owned", "owned@one");
    refused(&host, &["mount", &snapshot, mnt], 1, &["owned@one", "for reading alone"]);
    refused(&host, &["mount", "-o", "ro", &owned.replace("owned", "owned@two"), mnt], 1, &["No such file"]);
    // Every command names the owner that had the image mounted, because the cluster does not know
    // that the owner is dead.
    let dir = directory(&place, "owner");
    let owner = host.mount(&dir, &owned, &[]);
    kill_process(owner, Signal::KILL).unwrap();
    let other = Host::new(&cluster, "beta");
    // Each command waits for 15 seconds, because the lock might be released.
    std::thread::scope(|scope| {
        for (words, code) in [
            (vec!["mkfs", "-f", &owned], 1),
            (vec!["mount", &owned, mnt], 1),
            (vec!["mount", "-o", "ro", &owned, mnt], 1),
            (vec!["fsck", &owned], 8),
        ] {
            let other = &other;
            let said = ["locked by process", "on host alpha", "--takeover"];
            scope.spawn(move || refused(other, &words, code, &said));
        }
    });
}

/// The image is truncated while it is mounted: programs get errors for data beyond the new end, and
/// can still read the data before it.
#[test]
fn an_image_that_shrinks_under_its_mount_gives_errors() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let host = Host::new(&cluster, "alpha");
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "shrinks"));
    mkfs(&host, &uri, &["--size", "64M"]);
    host.mount(&dir, &uri, &["--cache-size", "1M"]);
    write_and_fsync(&host.seen(&dir).join("early"), b"early");
    cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", "24M", "rbd/shrinks"]).unwrap();
    let e = (0..48).find_map(|i| {
        let file = std::fs::File::create(host.seen(&dir).join(format!("late-{i}")));
        let write = |mut file: std::fs::File| {
            std::io::Write::write_all(&mut file, &vec![i; 1 << 20])?;
            file.sync_all()
        };
        file.and_then(write).err()
    });
    let e = e.expect("48 MiB do not fit into 24");
    assert!(matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)), "{e}");
    assert_eq!(std::fs::read(host.seen(&dir).join("early")).unwrap(), b"early");
    // The close may succeed or fail, but it must not hang.
    let ended = host.kedge(["umount".as_ref(), dir.as_os_str()]);
    assert!(matches!(ended.code, 0 | 1), "{}", ended.err);
    refused(&host, &["mount", &uri, dir.to_str().unwrap()], 1, &["truncated"]);
}

#[test]
fn a_cluster_that_is_down_is_waited_for_and_not_for_ever() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let host = Host::new(&cluster, "alpha");
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "down"));
    mkfs(&host, &uri, &["--size", "64M"]);
    // The cluster is down at the time of the mount.
    cluster.pause().unwrap();
    let run = host.kedge(["mount", "-o", "rbd_timeout=6", &uri, dir.to_str().unwrap()]);
    cluster.resume().unwrap();
    run.refused(1, &["rbd:rbd/down", "connect as client.fs", "timed out"]);
    // The cluster hangs during the mount and resumes in time: programs wait.
    host.mount(&dir, &uri, &["-o", "rbd_timeout=600"]);
    let writers = Writers::start(&host.backend(&dir), 2, "patient", 5).unwrap();
    until("the writers are at work", || writers.operations() > 10);
    cluster.pause().unwrap();
    until("the mount reports that the cluster does not answer", || {
        host.info(&dir)["device_state"].as_str().unwrap().starts_with("does not answer since 20")
    });
    cluster.resume().unwrap();
    let there = writers.operations();
    until("the writers go on", || writers.operations() > there + 10);
    assert_eq!(writers.stop().errors(), Vec::<&str>::new());
    assert_eq!(host.info(&dir)["device_state"], "answers");
    host.unmount(&dir);
    goes_down(&cluster, &host, &dir, &uri);
}

/// The cluster comes back too late: the mount reports that, and another owner can fence it and take
/// the lock.
fn goes_down(cluster: &Cluster, host: &Host, dir: &Path, uri: &str) {
    host.mount(dir, uri, &["-o", "rbd_timeout=6"]);
    assert!(host.info(dir)["device"].as_str().unwrap().ends_with("timeout=6"));
    let writers = Writers::start(&host.backend(dir), 2, "hurried", 6).unwrap();
    until("the writers are at work", || writers.operations() > 10);
    cluster.pause().unwrap();
    let acked = writers.snapshot();
    until("the mount gives up", || writers.ended());
    let begun = writers.stop();
    let errors = begun.errors();
    assert!(errors.len() == 2 && errors.iter().all(|e| e.contains("os error 5")), "{errors:?}");
    let info = host.info(dir);
    assert_eq!(info["state"], "shut down", "{info}");
    assert!(info["shut_down"].as_str().unwrap().contains("outcome"), "{info}");
    let stats = host.kedge(["stats".as_ref(), dir.as_os_str()]).ok();
    assert!(stats.starts_with("SHUT DOWN since"), "{stats}");
    cluster.resume().unwrap();
    let ended = host.kedge(["umount".as_ref(), dir.as_os_str()]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    host.mount(dir, uri, &["--takeover"]);
    verify_after(&*host.backend(dir), &acked, &begun).unwrap();
    host.unmount(dir);
    host.fsck(uri);
}

/// A snapshot of a mounted image is a state of one moment, as a crash would leave it. Several hosts
/// may read the snapshot while the owner writes.
#[test]
fn a_snapshot_of_a_mounted_image_is_a_moment_of_it() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let (alpha, beta) = (Host::new(&cluster, "alpha"), Host::new(&cluster, "beta"));
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "pictured"));
    mkfs(&alpha, &uri, &["--size", "128M"]);
    alpha.mount(&dir, &uri, &[]);
    // While it is mounted the image can be scrubbed but not changed.
    let scrubbed = alpha.kedge(["scrub".as_ref(), dir.as_os_str()]).ok();
    assert!(scrubbed.ends_with("clean\n"), "{scrubbed}");
    refused(&alpha, &["tune", "-L", "new", &uri], 1, &["is mounted on", "mnt"]);
    refused(&beta, &["tune", "-L", "new", &uri], 1, &["locked by process", "on host alpha"]);
    refused(&beta, &["scrub", &uri], 8, &["locked by process", "on host alpha"]);
    let writers = Writers::start(&alpha.backend(&dir), 3, "w", 7).unwrap();
    until("the writers are at work", || writers.operations() > 60);
    let other = directory(&place, "other");
    // A takeover from a live mount of the same host is refused, because that mount can be ended.
    let words = ["mount", "--takeover", &uri, other.to_str().unwrap()];
    refused(&alpha, &words, 1, &["in use", "mounted on", "mnt"]);
    let acked = writers.snapshot();
    cluster.rbd(&["snap", "create", "--no-progress", "rbd/pictured@now"]).unwrap();
    let begun = writers.snapshot();
    let snapshot = uri.replace("pictured", "pictured@now");
    beta.fsck(&snapshot);
    let two = directory(&place, "two");
    for (host, at) in [(&alpha, &two), (&beta, &dir), (&beta, &two)] {
        host.mount(at, &snapshot, &["-o", "ro"]);
        verify_after(&*host.backend(at), &acked, &begun).unwrap();
    }
    let there = writers.operations();
    until("the owner goes on", || writers.operations() > there + 10);
    assert_eq!(writers.stop().errors(), Vec::<&str>::new());
    for (host, at) in [(&alpha, &two), (&beta, &dir), (&beta, &two), (&alpha, &dir)] {
        host.unmount(at);
    }
    alpha.fsck(&uri);
}

/// A snapshot that is taken while the mount is frozen needs no replay, and also has the data
/// written without an fsync.
#[test]
fn a_snapshot_of_a_frozen_image_is_clean() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let (alpha, beta) = (Host::new(&cluster, "alpha"), Host::new(&cluster, "beta"));
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "frozen"));
    mkfs(&alpha, &uri, &["--size", "128M"]);
    alpha.mount(&dir, &uri, &[]);
    let writers = Writers::start(&alpha.backend(&dir), 3, "w", 11).unwrap();
    until("the writers are at work", || writers.operations() > 60);
    std::fs::write(alpha.seen(&dir).join("not fsynced"), b"written").unwrap();
    let mount = dir.to_str().unwrap();
    let snapshot = |name: &str| {
        cluster.rbd(&["snap", "create", "--no-progress", &format!("rbd/frozen@{name}")]).unwrap();
        PathBuf::from(uri.replace("rbd/frozen", &format!("rbd/frozen@{name}")))
    };
    let running = snapshot("running");
    let acked = writers.snapshot();
    assert_eq!(alpha.kedge(["freeze", mount]).code, 0);
    let frozen = snapshot("frozen");
    let begun = writers.snapshot();
    assert_eq!(alpha.kedge(["thaw", mount]).code, 0);
    assert_eq!(beta.info(&running)["clean"], false, "the check can fail");
    assert_eq!(beta.info(&frozen)["clean"], true);
    beta.fsck(frozen.to_str().unwrap());
    beta.mount(&dir, frozen.to_str().unwrap(), &["-o", "ro"]);
    assert_eq!(beta.info(&dir)["recovery"]["clean"], true);
    verify_after(&*beta.backend(&dir), &acked, &begun).unwrap();
    assert_eq!(std::fs::read(beta.seen(&dir).join("not fsynced")).unwrap(), b"written");
    let there = writers.operations();
    until("the owner goes on", || writers.operations() > there + 10);
    assert_eq!(writers.stop().errors(), Vec::<&str>::new());
    beta.unmount(&dir);
    alpha.unmount(&dir);
    alpha.fsck(&uri);
}
