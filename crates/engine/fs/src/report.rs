//! The counters and the identity of an open file system as JSON.

use crate::core::Fs;
use kedge_base::{Histogram, HistogramSnapshot};
use kedge_device::LatencyKind;
use kedge_format::record::RecordOp;
use kedge_store::{CheckpointCause, ForceCause, Tree};
use serde_json::{Map, Value, json};

fn latency(h: &HistogramSnapshot) -> Value {
    json!({
        "count": h.count,
        "sum": h.sum,
        "average": h.average(),
        "max": h.max,
        "p99": h.quantile(0.99),
        "p999": h.quantile(0.999),
        "histogram": h.buckets,
    })
}

impl Fs {
    /// All counters. Times are in nanoseconds, sizes in bytes. Histograms have power-of-two
    /// buckets.
    pub(crate) fn stats_value(&self) -> Value {
        let s = self.engine().stats();
        let operations: Map<String, Value> =
            s.operations().map(|(name, h)| (name.to_string(), latency(&h))).collect();
        json!({
            "operations": operations,
            "data": {
                "writes": s.data_writes.get(),
                "write_bytes": s.data_write_bytes.get(),
                "durable_writes": s.data_writes_durable.get(),
                "write_errors": s.data_write_errors.get(),
                "discarded_blocks": s.discarded_blocks.get(),
                "relocated_writes": s.relocated_writes.get(),
                "bad_blocks": self.engine().store().alloc().bad_blocks(),
                "reads": s.data_reads.get(),
                "checksum_errors": s.checksum_errors.get(),
                "read_bytes": s.data_read_bytes.get(),
                "fsyncs_with_data_in_log": s.logged_data.get(),
                "atomic_writes": s.atomic_writes.get(),
                "throttled_writes": s.throttled.get(),
                "short_writes": s.short_writes.get(),
            },
            "cache": {
                "inodes": self.inodes().len(),
                "dirty_inodes": self.writeback().dirty_inodes(),
                "inodes_under_writeback": self.writeback().inodes_under_writeback(),
                "sync_walked_inodes": self.writeback().walked_by_sync(),
                "pages": self.writeback().cached_pages(),
                "dirty_pages": self.writeback().dirty_pages(),
                "tree_bytes": self.engine().store().node_bytes().0,
                "tree_dirty_bytes": self.engine().store().node_bytes().1,
                "inodes_max": self.inodes().max(),
                "pages_max": self.writeback().pages_max(),
                "tree_bytes_max": self.engine().store().node_cache_bytes(),
                "times_given_back": s.given_back.get(),
            },
            "fsync_groups": latency(&self.syncer().groups()),
            "slow_fsyncs": self.syncer().slow_fsyncs(),
            "log": self.log_value(),
            "reservations": self.reservations_value(),
            "transactions": self.transactions_value(),
            "checkpoint": self.checkpoint_value(),
            "tree": self.tree_value(),
            "device": self.device_value(),
        })
    }

    /// The smallest unused rests of reservations, by the kind of the operation's record.
    fn reservations_value(&self) -> Value {
        let stats = self.engine().store().stats();
        let slack = RecordOp::ALL.iter().filter_map(|op| {
            let (log_bytes, nodes) = stats.slack[*op as usize].get()?;
            let records = stats.records[*op as usize].get();
            let value = json!({"records": records, "least_bytes_left": log_bytes, "least_nodes_left": nodes});
            Some((format!("{op:?}").to_lowercase(), value))
        });
        Value::Object(slack.collect())
    }

    fn log_value(&self) -> Value {
        let log = self.engine().store().log();
        let s = log.stats();
        let space = log.space();
        let forces: Map<String, Value> =
            ForceCause::ALL.iter().map(|c| (c.name().replace(' ', "_"), json!(s.forces(*c)))).collect();
        let records: Map<String, Value> = RecordOp::ALL
            .iter()
            .map(|op| {
                (
                    format!("{op:?}").to_lowercase(),
                    json!(self.engine().store().stats().records[*op as usize].get()),
                )
            })
            .collect();
        let (flushes, shared) = self.engine().store().flush_counts();
        json!({
            "head_lsn": self.engine().store().head_lsn().0,
            "durable_lsn": self.engine().store().durable_lsn().0,
            "tail_lsn": log.tail_lsn().0,
            "ring_bytes": space.ring_bytes,
            "used_bytes": space.used_bytes,
            "reserved_bytes": space.reserved_bytes,
            "reserved_bytes_max": space.reserved_bytes_max,
            "promised_bytes": space.promised_bytes,
            "free_percent": space.free_percent,
            "forces": forces,
            "forces_idle": s.forces_idle.get(),
            "writer_wakes": s.writer_wakes.get(),
            "writes": s.writes.get(),
            "records": s.records.get(),
            "records_by_operation": records,
            "bytes_appended": s.bytes_appended.get(),
            "bytes_written": s.bytes_written.get(),
            "data_flushes": flushes,
            "data_flushes_shared": shared,
            "flushes_shared": s.flushes_shared.get(),
            "group_records": latency(&s.group_records.snapshot()),
            "group_forces": latency(&s.group_forces.snapshot()),
            "write_ns": latency(&s.write_latency.snapshot()),
            "force_ns": latency(&s.force_latency.snapshot()),
            "space_stall_ns": latency(&s.space_stalls.snapshot()),
            "staged_stall_ns": latency(&s.staged_stalls.snapshot()),
        })
    }

    fn checkpoint_value(&self) -> Value {
        let s = self.engine().store().stats();
        let causes: Map<String, Value> = CheckpointCause::NAMES
            .iter()
            .zip(&s.checkpoints)
            .map(|(name, count)| (name.to_string(), json!(count.get())))
            .collect();
        json!({
            "generation": self.engine().store().generation().0,
            "by_cause": causes,
            "handles": s.handles(),
            "ns": latency(&s.checkpoint_ns.snapshot()),
            "paused_ns": latency(&s.paused_ns.snapshot()),
            "cut_ns": latency(&s.cut_ns.snapshot()),
            "nodes_written": s.nodes_written.get(),
            "inner_nodes_written": s.inner_nodes_written.get(),
            "bytes_written": s.checkpoint_bytes.get(),
            "node_stalls": s.node_stalls.get(),
            "dirty_stalls": s.dirty_stalls.get(),
            "throttle_ns": latency(&s.throttle_ns.snapshot()),
            "fsync_meanwhile_ns": latency(&self.syncer().meanwhile()),
        })
    }

    /// The transaction statistics that jbd2 reports. A *commit* is a log write that an operation, a
    /// sync or the commit timer requested; that is what jbd2 counts as a transaction. It counts as
    /// requested unless only the timer requested it. A *checkpoint* writes the changes between two
    /// cuts in place. The averages are those of checkpoints.
    fn transactions_value(&self) -> Value {
        let s = self.engine().store().stats();
        let log = self.engine().store().log().stats();
        let block = kedge_base::BLOCK_SIZE as u64;
        // Each counter is read once, because it may grow between two reads.
        let by_cause: Vec<u64> = s.checkpoints.iter().map(|c| c.get()).collect();
        let count: u64 = by_cause.iter().sum();
        let per = |total: u64| total / count.max(1);
        let mean = |h: &Histogram| h.snapshot().average() as u64;
        let stalls = log.space_stalls.snapshot();
        json!({
            "commits": log.commits.get(),
            "commits_requested": log.commits_requested.get(),
            "checkpoints": count,
            "checkpoints_requested": count - by_cause[CheckpointCause::Background as usize],
            "blocks_max": self.engine().store().geometry().log_bytes() / block,
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
        self.engine().store().with_tree(Fs::tree_stats)
    }

    fn tree_stats(tree: &Tree) -> Value {
        let (t, latches) = (tree.stats(), tree.latches());
        let kind = |k: &kedge_store::LatchKind| {
            let value = json!({
                "acquisitions": k.acquisitions,
                "calls": k.calls,
                "wakeups": k.wakeups,
                "wait_ns": latency(&k.wait_ns),
                "wait_us_histogram": k.wait_us.buckets,
                "wait_ms_histogram": k.wait_ms.buckets,
            });
            (format!("{}_{}", k.access, k.level), value)
        };
        json!({
            "height": tree.height(),
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
        let d = self.engine().store().device().stats();
        json!({
            "reads": d.reads.get(),
            "read_bytes": d.read_bytes.get(),
            "writes": d.writes.get(),
            "write_bytes": d.write_bytes.get(),
            "fua_writes": d.fua_writes.get(),
            "flushes": d.flushes.get(),
            "errors": self.device_errors(),
            "latency": self.device_latency(),
        })
    }

    /// Failed requests of the device, by kind. Empty if the device does not count them.
    fn device_errors(&self) -> Value {
        let errors = self.engine().store().device().errors();
        errors.map_or_else(
            || json!({}),
            |e| {
                json!({
                    "reads": e.reads.get(),
                    "writes": e.writes.get(),
                    "flushes": e.flushes.get(),
                    "discards": e.discards.get(),
                })
            },
        )
    }

    /// Median latencies of small requests, by kind; only of kinds that were measured.
    fn device_latency(&self) -> Value {
        let latency = self.engine().store().device().latency();
        let of = |kind: &LatencyKind| {
            let nanos = latency.typical(*kind)?.as_nanos() as u64;
            Some((format!("{}_ns", kind.name()), json!(nanos)))
        };
        LatencyKind::ALL.iter().filter_map(of).collect::<Map<String, Value>>().into()
    }

    /// Data that waits for space on the image's host; null while no shortage is known. Neither the
    /// host nor the device is queried, because either may hang.
    fn host_full(&self) -> Value {
        if !self.engine().knows_host_full() {
            return Value::Null;
        }
        let unwritten = self.writeback().dirty_pages().max(0) as u64 * kedge_base::BLOCK_SIZE as u64;
        json!({
            "unwritten_bytes": unwritten,
            "unwritten_files": self.writeback().dirty_inodes(),
            "metadata_bytes": self.engine().store().node_bytes().1,
            "spare_bytes": crate::host::SPARE_BYTES,
        })
    }

    /// Identity, geometry, state, options and the work of recovery. Times are seconds since 1970.
    pub(crate) fn info_value(&self) -> Value {
        let g = self.engine().store().geometry_now();
        let o = self.engine().options();
        let bytes = |blocks: u64| blocks * kedge_base::BLOCK_SIZE as u64;
        let free = self.engine().store().alloc().free_counts().free;
        let shut_down = self.engine().store().log().shutdown_reason();
        let frozen_since = self.engine().gate().since();
        json!({
            "uuid": g.uuid.to_string(),
            "label": g.label,
            "size_bytes": bytes(g.total_blocks),
            "smallest_bytes": self.engine().store().smallest_bytes(),
            "block_size_bytes": kedge_base::BLOCK_SIZE,
            "log_size_bytes": g.log_bytes(),
            "allocation_groups": g.groups(),
            "features": {
                "compat": g.feature_compat,
                "ro_compat": g.feature_ro_compat,
                "incompat": g.feature_incompat,
            },
            "created": g.created.sec,
            "device": self.engine().store().device().name(),
            "device_latency": self.device_latency(),
            "device_errors": self.device_errors(),
            "generation": self.engine().store().generation().0,
            "epoch": self.engine().store().epoch().0,
            "inodes": self.engine().store().inode_count(),
            "free_bytes": bytes(free),
            "used_bytes": bytes(g.total_blocks.saturating_sub(free)),
            "read_only": self.engine().store().is_read_only(),
            "lost_files": self.engine().store().losses().map_or(0, |losses| losses.files),
            "lost_since": self.engine().store().losses().map(|losses| losses.since),
            "state": if shut_down.is_some() {
                "shut down"
            } else if frozen_since.is_some() {
                "frozen"
            } else {
                "mounted"
            },
            "host_full": self.host_full(),
            "frozen_since": frozen_since,
            "shut_down": shut_down.map(|reason| reason.to_string()),
            "shut_down_since": self.engine().store().log().shutdown_since(),
            "options": {
                "commit": o.commit.as_secs_f64(),
                "cache_size": o.cache_size,
                "async_checkpoint": o.async_checkpoint,
                "new_name": o.new_name.word(),
                "fdatasync": o.fdatasync.word(),
                "plug": o.plug,
                "noatime": o.noatime,
                "discard": o.discard,
                "volatile": o.volatile,
                "writeback_order": o.writeback_order.name(),
                "dirty_tracking": match o.dirty_set {
                    Some(_) => self.writeback().tracking(),
                    None => o.dirty_tracking.word(),
                },
                "tree_lock": o.tree_lock.name(),
            },
            "recovery": self.engine().store().replay_summary(),
        })
    }
}
