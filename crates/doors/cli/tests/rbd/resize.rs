//! The size of an image in a cluster follows that of its file system, mounted or not.

use crate::common::write_and_fsync;
use crate::{Host, cluster, directory, mkfs, uri};
use kedge_ceph::Cluster;
use rustix::process::{Signal, kill_process};

const MIB: u64 = 1 << 20;

/// The size of the image as the cluster's tools show it.
fn size_in_cluster(cluster: &Cluster, image: &str) -> u64 {
    let said = cluster.rbd(&["info", "--format", "json", &format!("rbd/{image}")]).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["size"].as_u64().unwrap()
}

#[test]
fn an_image_is_extended_and_truncated_with_its_file_system() {
    let Some(cluster) = cluster() else { return };
    let place = crate::common::Place::new();
    let host = Host::new(&cluster, "alpha");
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "sized"));
    let in_cluster = || size_in_cluster(&cluster, "sized");
    mkfs(&host, &uri, &["--size", "64M"]);
    host.kedge(["resize", &uri, "100M"]).ok();
    assert_eq!(in_cluster(), 100 * MIB);
    host.kedge(["resize", &uri, "80M"]).ok();
    assert_eq!(in_cluster(), 80 * MIB);
    host.fsck(&uri);
    let server = host.mount(&dir, &uri, &[]);
    let mnt = dir.to_str().unwrap();
    host.kedge(["resize", mnt, "300M"]).ok();
    assert_eq!(in_cluster(), 300 * MIB);
    for i in 0..150 {
        write_and_fsync(&host.seen(&dir).join(format!("file{i}")), &vec![i; 1 << 20]);
    }
    for i in (0..150).filter(|i| i % 10 != 9) {
        std::fs::remove_file(host.seen(&dir).join(format!("file{i}"))).unwrap();
    }
    host.kedge(["resize", mnt, "100M"]).ok();
    assert_eq!(in_cluster(), 100 * MIB);
    // Another tool enlarges the image, and the server dies before the file system has the new size.
    cluster.rbd(&["resize", "--no-progress", "--size", "200M", "rbd/sized"]).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    host.kedge(["umount", mnt]).refused(1, &["had died"]);
    host.mount(&dir, &uri, &["--takeover"]);
    host.kedge(["resize", mnt]).ok();
    assert_eq!(host.info(&dir)["size_bytes"], 200 * MIB);
    for i in (0..150).filter(|i| i % 10 == 9) {
        assert_eq!(std::fs::read(host.seen(&dir).join(format!("file{i}"))).unwrap(), vec![i; 1 << 20]);
    }
    host.unmount(&dir);
    host.fsck(&uri);
}
