//! An owner that was stopped and goes on after another host has taken its image over: none of its
//! writes reaches the image, its mount reports the takeover, and its programs get EIO.

use crate::common::{Place, write_and_fsync};
use crate::{BLOCKLIST_SECS, Host, cluster, directory, mkfs, until, uri};
use kedge_ceph::Cluster;
use kedge_sim::writers::{Snapshot, Writers, verify_after};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

/// A stopped owner with operations of its writers in flight.
struct Stopped {
    pid: Pid,
    writers: Writers,
    acked: Snapshot,
}

fn stop_in_the_middle(host: &Host, dir: &Path, uri: &str, seed: u64) -> Stopped {
    let pid = host.mount(dir, uri, &[]);
    write_and_fsync(&host.seen(dir).join("shared"), b"the old owner's");
    let writers = Writers::start(&host.backend(dir), 3, "old", seed).unwrap();
    until("the writers are at work", || writers.operations() > 40);
    kill_process(pid, Signal::STOP).unwrap();
    let acked = writers.snapshot();
    Stopped { pid, writers, acked }
}

/// Continues the stopped owner, whose writers end with errors. Returns the operations that the
/// writers had begun.
fn goes_on(host: &Host, dir: &Path, old: Stopped) -> Snapshot {
    kill_process(old.pid, Signal::CONT).unwrap();
    // Each writer soon needs the device, and then gets an error.
    until("the fenced mount refuses its writers", || old.writers.ended());
    let begun = old.writers.stop();
    let errors = begun.errors();
    assert!(errors.len() == 3 && errors.iter().all(|e| e.contains("os error 5")), "{errors:?}");
    let info = host.info(dir);
    let why = info["shut_down"].as_str().unwrap_or_default();
    assert!(why.contains("taken over by another owner"), "{info}");
    let stats = host.kedge(["stats".as_ref(), dir.as_os_str()]).ok();
    assert!(stats.starts_with("SHUT DOWN since") && stats.contains("taken over"), "{stats}");
    let e = std::fs::File::create(host.seen(dir).join("more")).and_then(|file| file.sync_all()).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
    let ended = host.kedge(["umount".as_ref(), dir.as_os_str()]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("taken over by another owner"), "{}", ended.err);
    begun
}

/// A checksum of the whole image.
fn checksum(cluster: &Cluster, image: &str) -> String {
    let mut command = cluster.command("sh");
    command.args(["-euc", "rbd -c \"$0\" export --no-progress \"rbd/$1\" - | sha256sum"]);
    let output = command.arg(cluster.conf()).arg(image).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_owner_that_was_stopped_never_writes_again() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let (alpha, beta) = (Host::new(&cluster, "alpha"), Host::new(&cluster, "beta"));
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "stopped"));
    mkfs(&alpha, &uri, &["--size", "128M"]);
    let old = stop_in_the_middle(&alpha, &dir, &uri, 1);
    let acked = old.acked.clone();
    beta.mount(&dir, &uri, &["--takeover"]);
    write_and_fsync(&beta.seen(&dir).join("shared"), b"the new owner's");
    let new = Writers::start(&beta.backend(&dir), 2, "new", 2).unwrap();
    until("the new owner's writers are at work", || new.operations() > 20);
    let begun = goes_on(&alpha, &dir, old);
    let there = new.operations();
    until("the new owner goes on", || new.operations() > there + 10);
    let new_acked = new.snapshot();
    let new_begun = new.stop();
    assert_eq!(new_begun.errors(), Vec::<&str>::new());
    beta.unmount(&dir);
    beta.fsck(&uri);
    beta.mount(&dir, &uri, &["-o", "ro"]);
    assert_eq!(std::fs::read(beta.seen(&dir).join("shared")).unwrap(), b"the new owner's");
    verify_after(&*beta.backend(&dir), &acked, &begun).unwrap();
    verify_after(&*beta.backend(&dir), &new_acked, &new_begun).unwrap();
    beta.unmount(&dir);
}

/// The blocklist entry of a broken lock has expired, and no other host has the image open: any
/// change of the image now comes from the old owner.
#[test]
fn an_owner_that_was_stopped_for_long_never_writes_again() {
    let Some(cluster) = cluster() else { return };
    let place = Place::new();
    let (alpha, beta) = (Host::new(&cluster, "alpha"), Host::new(&cluster, "beta"));
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "expired"));
    mkfs(&alpha, &uri, &["--size", "64M"]);
    let old = stop_in_the_middle(&alpha, &dir, &uri, 3);
    beta.mount(&dir, &uri, &["--takeover"]);
    write_and_fsync(&beta.seen(&dir).join("shared"), b"the new owner's");
    beta.unmount(&dir);
    // The monitor removes expired entries every few seconds.
    std::thread::sleep(Duration::from_secs(u64::from(BLOCKLIST_SECS) + 6));
    let before = checksum(&cluster, "expired");
    goes_on(&alpha, &dir, old);
    assert_eq!(checksum(&cluster, "expired"), before, "the image has changed");
    beta.fsck(&uri);
}
