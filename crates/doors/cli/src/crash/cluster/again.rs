//! Records the recoveries of a cluster's crash states.

use kedge_crash::again::Recorder;
use kedge_crash::{Case, CommandChecker, Trace};
use kedge_crash_record::record_cluster_recovery;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs the check on a crash state and records the calls of each node, on a mount for each node.
pub struct Recoveries<'a> {
    /// The names of the nodes.
    pub names: &'a [String],
    pub checker: &'a CommandChecker,
    pub timeout: Duration,
    pub stop: &'a AtomicBool,
}

impl Recorder<Vec<Trace>> for Recoveries<'_> {
    fn record(&self, case: &Case<'_>) -> Result<Vec<Trace>, String> {
        let node = |name: &'_ String| {
            let tree = case.state.below(name).ok_or_else(|| format!("the state has no node {name}"))?;
            Ok((name.clone(), tree))
        };
        let nodes = self.names.iter().map(node).collect::<Result<Vec<_>, String>>()?;
        let make = |dir: &_, root: &_| self.checker.command_in(case, dir, root, &[]);
        record_cluster_recovery(&nodes, make, self.timeout, self.stop).map_err(|e| e.to_string())
    }
}
