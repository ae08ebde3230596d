//! A cluster whose nodes all lose power at the same time.
//!
//! ```text
//! manifest   which recordings belong together
//! clock      the recordings with one order of all events; crash points of the cluster
//! plan       which combinations of the nodes' states are tried, in which order
//! judge      the verdict on one state
//! recovery   the recovery of all nodes, crashed again
//! search     the search
//! node       one node's states while the others keep theirs, judged as the cluster's
//! explain    the smallest failing state; which nodes lose what, and the call that prevents it
//! campaign   a whole run
//! report     text, JSON, and what CI servers need
//! html       the HTML page
//! ```
//!
//! A state of the cluster has a state of each node, all at one moment of the common clock. Each is
//! legal by the model of the node's file system. Every combination of legal states is legal, since
//! the disks of different machines are independent.

mod campaign;
mod clock;
mod explain;
mod html;
mod judge;
mod manifest;
mod node;
mod plan;
mod recovery;
mod report;
mod search;

pub use crate::explain::NodeLoss;
pub use campaign::{ClusterReport, explore_cluster};
pub use clock::{BadState, Cluster};
pub use explain::ClusterExplanation;
pub use judge::with_case;
pub use manifest::{BadNode, Manifest, NODES_MAX, check_names, recording_of};
pub use report::ClusterTold;
pub use search::{ClusterFailure, ClusterOutcome, ClusterSearch};

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
