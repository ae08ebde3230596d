//! kedge-sim.
