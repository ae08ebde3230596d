//! Devices for tests: a simulator that records, fails and crashes; a volatile cache for a process
//! that is killed; a device with latency that counts round trips; and a server that exports any
//! device through NBD.
//!
//! All randomness comes from seeds given by the caller, so the same seed reproduces a failure.

mod device;
mod distant;
mod fault;
mod medium;
#[cfg(target_os = "linux")]
mod nbd_server;
mod recording;
mod scripted;
mod volatile;

pub use crate::pages::Data;
pub use device::SimDevice;
pub use distant::DistantDevice;
pub use fault::{FaultPlan, OpCounts, OpKind, Strike};
pub use medium::Choice;
#[cfg(target_os = "linux")]
pub use nbd_server::{Manners, NbdServer};
pub use recording::{CrashState, Event, Recording, StatePlan, States};
pub use scripted::ScriptedDevice;
pub use volatile::VolatileDevice;
