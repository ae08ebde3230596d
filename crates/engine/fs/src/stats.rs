//! Counters of the file system: count, average, maximum and histogram for each operation, as dbench
//! prints them, and data IO.

use kedge_base::{Counter, Histogram, HistogramSnapshot};

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// The operations that are counted and timed.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(non_camel_case_types)]
        #[repr(usize)]
        pub(crate) enum OpKind { $($name),* }

        const OP_NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

ops!(
    lookup,
    getattr,
    setattr,
    create,
    mkdir,
    mknod,
    symlink,
    readlink,
    tmpfile,
    link,
    unlink,
    rmdir,
    rename,
    readdir,
    read,
    write,
    fallocate,
    seek,
    fsync,
    fdatasync,
    sync,
    getxattr,
    setxattr,
    listxattr,
    removexattr,
    freeze,
    thaw,
    fork,
    delete_tree,
    commit_atomic,
    clone,
);

pub(crate) struct FsStats {
    /// Durations in nanoseconds, by operation.
    ops: Vec<Histogram>,
    pub data_writes: Counter,
    pub data_write_bytes: Counter,
    /// Failed writes of file data.
    pub data_write_errors: Counter,
    pub discarded_blocks: Counter,
    /// Pages that were written to another block after a write to their block had failed.
    pub relocated_writes: Counter,
    /// Data writes with FUA, which need no flush.
    pub data_writes_durable: Counter,
    /// Blocks that were read from the device and did not match their checksums.
    pub checksum_errors: Counter,
    pub data_reads: Counter,
    pub data_read_bytes: Counter,
    /// fsyncs that put their data into the log.
    pub logged_data: Counter,
    /// Atomic writes that were committed.
    pub atomic_writes: Counter,
    /// Writers that had to write back dirty pages themselves.
    pub throttled: Counter,
    /// Writes that accepted fewer bytes than requested.
    pub short_writes: Counter,
    /// Number of times that the caches were made smaller because memory was short.
    pub given_back: Counter,
}

impl Default for FsStats {
    fn default() -> Self {
        FsStats {
            ops: OP_NAMES.iter().map(|_| Histogram::default()).collect(),
            data_writes: Counter::new(),
            data_write_bytes: Counter::new(),
            data_write_errors: Counter::new(),
            discarded_blocks: Counter::new(),
            relocated_writes: Counter::new(),
            data_writes_durable: Counter::new(),
            checksum_errors: Counter::new(),
            data_reads: Counter::new(),
            data_read_bytes: Counter::new(),
            logged_data: Counter::new(),
            atomic_writes: Counter::new(),
            throttled: Counter::new(),
            short_writes: Counter::new(),
            given_back: Counter::new(),
        }
    }
}

impl FsStats {
    pub(crate) fn record(&self, op: OpKind, nanos: u64) {
        self.ops[op as usize].record(nanos);
    }

    /// Histograms of the operations that occurred, by name.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (&'static str, HistogramSnapshot)> {
        let all = OP_NAMES.iter().zip(&self.ops).map(|(name, h)| (*name, h.snapshot()));
        all.filter(|(_, h)| h.count > 0)
    }
}
