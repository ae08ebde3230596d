#![allow(clippy::unwrap_used)]

use super::*;
use std::path::Path;

/// It serves, and nothing of it is left.
#[test]
fn a_cluster_serves_and_ends() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(Layout { osds: 1, ..Layout::usual() }).unwrap();
    cluster.rbd(&["create", "--size", "16M", "rbd/one"]).unwrap();
    assert_eq!(cluster.rbd(&["ls", "rbd"]).unwrap().trim(), "one");
    let (dir, pids): (_, Vec<u32>) =
        (cluster.dir.clone(), cluster.daemons.lock().values().map(Child::id).collect());
    assert_eq!(pids.len(), 2);
    drop(cluster);
    assert!(!dir.exists());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}
