#![allow(clippy::unwrap_used)]

use super::*;
use std::path::Path;

/// The cluster serves requests, and leaves neither files nor processes when it ends.
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

/// A test is skipped only if the machine refuses namespaces, and the refusal is the reason of the
/// skip.
#[test]
fn a_confined_machine_is_told_from_others() {
    let refused = confinement("echo 'no cable here' >&2; exit 3").unwrap();
    if confinement("true").is_none() {
        assert!(refused.contains("no cable here") && refused.contains('3'), "{refused}");
        // The probe leaves nothing behind, so a second probe has the same result.
        assert_eq!(confinement(APART), confinement(APART));
    } else {
        kedge_base::skip::note("this process gets no namespaces at all");
    }
}
