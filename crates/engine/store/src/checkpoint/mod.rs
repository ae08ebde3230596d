//! Checkpoints: when they start, how fast they write, what they write, and in which order.

mod background;
pub(crate) mod pace;
mod run;

pub use run::{CheckpointCause, CheckpointClient, check_async_percent};
pub(crate) use run::{Control, Cut, write_checkpoint, write_losses};
#[cfg(test)]
pub(crate) use run::{batch_writes, write_merged};
