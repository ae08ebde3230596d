//! Rows of clusters. `run.sh` starts all nodes of a cluster, each on its directory
//! `$KEDGE_DIR/NODE`, and prints `ack …` for each promise to the cluster's user. `check.sh` starts
//! the cluster after all nodes have lost power.
//!
//! Each run of a script has a network of its own, so that two checks can run at a time although the
//! nodes listen on fixed ports. A failure is not replayed on devices, since a recorded device
//! belongs to one machine.

use super::rows::Row;
use super::{Suite, text};
use anyhow::{Context, Result, bail};
use std::fmt::Write;

/// The words of the command before the options of a search.
pub(super) const EXPLORE: [&str; 5] = ["crash", "cluster", "explore", "--jobs", "2"];
/// The directory of the nodes' recordings.
pub(super) const RECORDINGS: &str = "run.cluster";

/// Returns the text of the file that describes the cluster. Files that the row has prepared for a
/// node are its initial content.
fn description(command: &str, nodes: &[String], prepared: impl Fn(&str) -> bool) -> String {
    let mut text = format!("command = {command:?}\n");
    for node in nodes {
        let from = if prepared(node) { format!("from = \"from/{node}\"\n") } else { String::new() };
        // Writing to a string does not fail.
        let _ = write!(text, "\n[[node]]\nname = {node:?}\n{from}");
    }
    text
}

impl Suite {
    pub(super) fn prepare_and_record_cluster(&self, row: &Row, nodes: &[String]) -> Result<()> {
        self.prepare(row)?;
        let (script, args) = row.run.split_first().context("a script")?;
        let command = format!("exec sh '{}' {}", self.dir.join(script).display(), args.join(" "));
        let prepared = |node: &str| self.temp.join("from").join(node).is_dir();
        let path = self.temp.join("cluster.toml");
        std::fs::write(&path, description(&command, nodes, prepared))
            .with_context(|| path.display().to_string())?;
        let recorded = self
            .command(&self.kedge)
            .args(["crash", "cluster", "record", "--ack", "^ack", "--timeout", "5m", "-o"])
            .arg(self.temp.join(RECORDINGS))
            .arg(&path)
            .output()
            .with_context(|| format!("start {}", self.kedge.display()))?;
        if !recorded.status.success() {
            bail!("not recorded: {}", text(&recorded));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "clusters_tests.rs"]
mod tests;
