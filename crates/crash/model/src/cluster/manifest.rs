//! Which recordings belong to one cluster.

use serde::{Deserialize, Serialize};

/// The most nodes of a cluster. Each node has a mount, and each state a directory for each node.
pub const NODES_MAX: usize = 32;
const NAME_MAX: usize = 32;

/// The names of the nodes in order, which are stored in the file `cluster.toml` beside the
/// recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNode {
    #[error("a cluster has 2 to {NODES_MAX} nodes, not {0}")]
    Count(usize),
    #[error("{0:?} is no name of a node: 1 to {NAME_MAX} letters, digits, _ and - are")]
    Name(String),
    #[error("two nodes have the name {0:?}")]
    Twice(String),
}

/// Refuses names that cannot be names of directories and parts of the names of states.
pub fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), BadNode> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        let is_known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_known) {
            return Err(BadNode::Name(name.to_owned()));
        }
        if !seen.insert(name) {
            return Err(BadNode::Twice(name.to_owned()));
        }
    }
    match seen.len() {
        2..=NODES_MAX => Ok(()),
        n => Err(BadNode::Count(n)),
    }
}

/// The file name of a node's recording.
pub fn recording_of(node: &str) -> String {
    format!("{node}.kcr")
}

impl Manifest {
    pub const FILE: &'static str = "cluster.toml";

    pub fn to_text(&self) -> String {
        // Names have no characters that TOML would escape.
        let names: Vec<String> = self.nodes.iter().map(|name| format!("{name:?}")).collect();
        format!("nodes = [{}]\n", names.join(", "))
    }
}
