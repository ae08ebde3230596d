//! Opening an image: choice of the superblock slot, replay of the log, and a first checkpoint that
//! starts a new epoch.
//!
//! # Steps
//! | | what | after a crash here |
//! |---|---|---|
//! | 1 | both slots are decoded; the valid one of the higher generation is taken | nothing was written |
//! | 2 | the log is scanned from the tail. Blocks that records allocate are held, so that replay does not put tree nodes there. The records are kept in memory | nothing was written |
//! | 3 | records below the cut feed the overlay, records from the cut on are applied. Records that did not fit into memory are read again | nothing was written: all nodes are dirty in memory |
//! | 4 | what remains of the overlay is written in place | the next recovery starts from the same slot and log and writes the same bytes; in that slot's view newly allocated blocks have no owner |
//! | 5 | a checkpoint of the next generation: tail = cut = head, epoch + 1 | before its slot is durable as in 4; afterwards the image is recovered |
//!
//! A read-only open does the same on an overlay in memory, and does not write to the image. An open
//! of a frozen image finds nothing to replay, and leaves step 5 to the thaw.
//!
//! # Waiting for the device
//! A remote device takes milliseconds for each request, and a full log names tens of thousands of
//! nodes and blocks. So blocks that are known to be needed are never read one after another. The
//! scan reads ahead ([`mod@kedge_log::scan`]); step 3 reads the leaves of many records in parallel,
//! and then applies these records in order; step 4 works in batches (`overlay`). The sizes bound
//! the memory. They do not follow the measured latency, since on a fast device they cost nothing.
//!
//! # Files
//! `image` is the state that is being recovered. The steps are methods of that state, and each file
//! uses only those before it: `overlay` (step 4), `replay` (2 and 3), `open` (1 and 5, and the
//! order of all).

mod image;
mod open;
mod overlay;
mod replay;

pub use image::{OpenOptions, count_log_writes};
