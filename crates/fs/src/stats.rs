//! Counters of the file system: per operation in dbench's manner (count, average, maximum, histogram), and data IO.

use crate::core::Fs;
use crate::slow::SlowFsyncs;
use kedge_base::{Counter, Histogram, HistogramSnapshot};
use kedge_format::record::RecordOp;
use kedge_store::CheckpointCause;
use kedge_store::ForceCause;
use serde_json::{Map, Value, json};

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// An operation of the interface.
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
);

pub(crate) struct FsStats {
    /// Nanoseconds by operation.
    ops: Vec<Histogram>,
    pub data_writes: Counter,
    pub data_write_bytes: Counter,
    /// Writes of file data that the device did not take.
    pub data_write_errors: Counter,
    /// Pages that went elsewhere after the device had not taken a write to their block.
    pub relocated_writes: Counter,
    /// Of the data writes, those that need no flush.
    pub data_writes_durable: Counter,
    pub data_reads: Counter,
    pub data_read_bytes: Counter,
    /// fsyncs whose data rode in the log.
    pub logged_data: Counter,
    /// Writers that had to write back themselves.
    pub throttled: Counter,
    /// Writes that took less than they were given.
    pub short_writes: Counter,
    /// Nanoseconds of fsyncs and fdatasyncs during which a checkpoint ran, if only for a part.
    pub fsync_meanwhile: Histogram,
    pub slow: SlowFsyncs,
}

impl Default for FsStats {
    fn default() -> Self {
        FsStats {
            ops: OP_NAMES.iter().map(|_| Histogram::default()).collect(),
            data_writes: Counter::new(),
            data_write_bytes: Counter::new(),
            data_write_errors: Counter::new(),
            relocated_writes: Counter::new(),
            data_writes_durable: Counter::new(),
            data_reads: Counter::new(),
            data_read_bytes: Counter::new(),
            logged_data: Counter::new(),
            throttled: Counter::new(),
            short_writes: Counter::new(),
            fsync_meanwhile: Histogram::default(),
            slow: SlowFsyncs::default(),
        }
    }
}

impl FsStats {
    pub fn record(&self, op: OpKind, nanos: u64) {
        self.ops[op as usize].record(nanos);
    }
}

fn latency(h: &HistogramSnapshot) -> Value {
    json!({
        "count": h.count,
        "average": h.average(),
        "max": h.max,
        "p99": h.quantile(0.99),
        "p999": h.quantile(0.999),
        "histogram": h.buckets,
    })
}

impl Fs {
    /// All counters. Times are nanoseconds (histograms: power-of-two buckets of them), sizes bytes.
    pub fn stats_value(&self) -> Value {
        let s = &self.stats;
        let operations: Map<String, Value> = OP_NAMES
            .iter()
            .zip(&s.ops)
            .map(|(name, h)| (name, h.snapshot()))
            .filter(|(_, h)| h.count > 0)
            .map(|(name, h)| (name.to_string(), latency(&h)))
            .collect();
        json!({
            "operations": operations,
            "data": {
                "writes": s.data_writes.get(),
                "write_bytes": s.data_write_bytes.get(),
                "durable_writes": s.data_writes_durable.get(),
                "write_errors": s.data_write_errors.get(),
                "relocated_writes": s.relocated_writes.get(),
                "bad_blocks": self.store.alloc().bad_blocks(),
                "reads": s.data_reads.get(),
                "read_bytes": s.data_read_bytes.get(),
                "fsyncs_with_data_in_log": s.logged_data.get(),
                "throttled_writes": s.throttled.get(),
                "short_writes": s.short_writes.get(),
            },
            "cache": {
                "inodes": self.inodes.len(),
                "dirty_inodes": self.dirty.len(),
                "inodes_under_writeback": self.dirty.count_under_writeback(),
                "pages": self.budget.cached_pages(),
                "dirty_pages": self.budget.dirty_pages(),
                "tree_bytes": self.store.tree().cached_bytes(),
                "tree_dirty_bytes": self.store.tree().dirty_bytes(),
            },
            "slow_fsyncs": s.slow.list(),
            "log": self.log_value(),
            "transactions": self.transactions_value(),
            "checkpoint": self.checkpoint_value(),
            "tree": self.tree_value(),
            "device": self.device_value(),
        })
    }

    fn log_value(&self) -> Value {
        let log = self.store.log();
        let s = log.stats();
        let space = log.space();
        let forces: Map<String, Value> =
            ForceCause::ALL.iter().map(|c| (c.name().replace(' ', "_"), json!(s.forces(*c)))).collect();
        let records: Map<String, Value> = RecordOp::ALL
            .iter()
            .map(|op| {
                (format!("{op:?}").to_lowercase(), json!(self.store.stats().records[*op as usize].get()))
            })
            .collect();
        let (flushes, shared) = self.store.flush_counts();
        json!({
            "head_lsn": self.store.head_lsn().0,
            "durable_lsn": self.store.durable_lsn().0,
            "tail_lsn": log.tail_lsn().0,
            "ring_bytes": space.ring_bytes,
            "used_bytes": space.used_bytes,
            "reserved_bytes": space.reserved_bytes,
            "promised_bytes": space.promised_bytes,
            "free_percent": space.free_percent,
            "forces": forces,
            "forces_idle": s.forces_idle.get(),
            "writes": s.writes.get(),
            "records": s.records.get(),
            "records_by_operation": records,
            "bytes_appended": s.bytes_appended.get(),
            "bytes_written": s.bytes_written.get(),
            "data_flushes": flushes,
            "data_flushes_shared": shared,
            "group_records": latency(&s.group_records.snapshot()),
            "group_forces": latency(&s.group_forces.snapshot()),
            "write_ns": latency(&s.write_latency.snapshot()),
            "force_ns": latency(&s.force_latency.snapshot()),
            "space_stall_ns": latency(&s.space_stalls.snapshot()),
            "staged_stall_ns": latency(&s.staged_stalls.snapshot()),
        })
    }

    fn checkpoint_value(&self) -> Value {
        let s = self.store.stats();
        let causes: Map<String, Value> = CheckpointCause::NAMES
            .iter()
            .zip(&s.checkpoints)
            .map(|(name, count)| (name.to_string(), json!(count.get())))
            .collect();
        json!({
            "generation": self.store.generation().0,
            "by_cause": causes,
            "handles": s.handles(),
            "ns": latency(&s.checkpoint_ns.snapshot()),
            "cut_ns": latency(&s.cut_ns.snapshot()),
            "nodes_written": s.nodes_written.get(),
            "bytes_written": s.checkpoint_bytes.get(),
            "node_stalls": s.node_stalls.get(),
            "dirty_stalls": s.dirty_stalls.get(),
            "throttle_ns": latency(&s.throttle_ns.snapshot()),
            "fsync_meanwhile_ns": latency(&self.stats.fsync_meanwhile.snapshot()),
        })
    }

    /// What jbd2 tells of its transactions: a transaction is what lies between two checkpoints' cuts.
    fn transactions_value(&self) -> Value {
        let s = self.store.stats();
        let log = self.store.log().stats();
        let block = kedge_base::BLOCK_SIZE as u64;
        let by_cause = |cause: CheckpointCause| s.checkpoints[cause as usize].get();
        let count: u64 = s.checkpoints.iter().map(|c| c.get()).sum();
        let per = |total: u64| total / count.max(1);
        let mean = |h: &Histogram| h.snapshot().average() as u64;
        let stalls = log.space_stalls.snapshot();
        json!({
            "count": count,
            "requested": count - by_cause(CheckpointCause::Background),
            "blocks_max": self.store.geometry().log_bytes() / block,
            "waiting_avg_ns": per(stalls.sum),
            "running_avg_ns": mean(&s.running_ns),
            "locked_avg_ns": mean(&s.cut_ns),
            "flushing_avg_ns": mean(&s.flushing_ns),
            "logging_avg_ns": mean(&s.logging_ns),
            "commit_avg_ns": mean(&s.checkpoint_ns),
            "handles_avg": per(s.handles()),
            "blocks_avg": per(s.checkpoint_bytes.get() / block),
            "logged_blocks_avg": per(log.bytes_written.get() / block),
            "log_space_stalls": stalls.count,
            "log_space_stall_ns": stalls.sum,
        })
    }

    fn tree_value(&self) -> Value {
        let t = self.store.tree().stats();
        let latches = self.store.tree().latches();
        let kind = |k: &kedge_store::LatchKind| {
            let value = json!({
                "acquisitions": k.acquisitions,
                "wakeups": k.wakeups,
                "wait_ns": latency(&k.wait_ns),
                "wait_us_histogram": k.wait_us.buckets,
                "wait_ms_histogram": k.wait_ms.buckets,
            });
            (format!("{}_{}", k.access, k.level), value)
        };
        json!({
            "height": self.store.tree_height(),
            "node_reads": t.node_reads.get(),
            "lock": latches.lock.name(),
            "restarts": latches.restarts,
            "fallbacks": latches.fallbacks,
            "conversions": latches.conversions,
            "copies": t.copies.get(),
            "latches": latches.kinds.iter().map(kind).collect::<Map<String, Value>>(),
        })
    }

    fn device_value(&self) -> Value {
        let d = self.store.device().stats();
        json!({
            "reads": d.reads.get(),
            "read_bytes": d.read_bytes.get(),
            "writes": d.writes.get(),
            "write_bytes": d.write_bytes.get(),
            "fua_writes": d.fua_writes.get(),
            "flushes": d.flushes.get(),
        })
    }

    /// Identity, geometry, options and what recovery did.
    pub fn info_value(&self) -> Value {
        let g = self.store.geometry();
        let o = self.options.lock().clone();
        json!({
            "uuid": g.uuid.to_string(),
            "label": g.label,
            "size": g.total_blocks * kedge_base::BLOCK_SIZE as u64,
            "block_size": kedge_base::BLOCK_SIZE,
            "log_size": g.log_bytes(),
            "groups": g.groups(),
            "created": g.created.sec,
            "device": self.store.device().name(),
            "generation": self.store.generation().0,
            "epoch": self.store.epoch().0,
            "inodes": self.store.inode_count(),
            "free_blocks": self.store.alloc().free_counts().free,
            "read_only": self.store.is_read_only(),
            "lost_files": self.store.losses().map_or(0, |losses| losses.files),
            "lost_since": self.store.losses().map(|losses| losses.since),
            "shut_down": self.store.log().shutdown_reason().map(|reason| reason.to_string()),
            "options": {
                "commit": o.commit.as_secs_f64(),
                "cache_size": o.cache_size,
                "async_checkpoint": o.async_checkpoint,
                "new_name": o.new_name.word(),
                "fdatasync": o.fdatasync.word(),
                "plug": o.plug,
                "writeback_order": o.writeback_order.name(),
                "dirty_tracking": o.dirty_tracking.word(),
                "tree_lock": o.tree_lock.name(),
            },
            "recovery": self.store.replay_summary(),
        })
    }
}
