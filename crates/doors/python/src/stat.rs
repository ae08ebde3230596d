//! Attributes and figures as the classes of `os` have them.

use kedgefs::{Attr, StatFs, Timespec};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

const NANOS: i128 = 1_000_000_000;

fn seconds(time: Timespec) -> f64 {
    time.sec as f64 + f64::from(time.nsec) / NANOS as f64
}

fn nanos(time: Timespec) -> i128 {
    i128::from(time.sec) * NANOS + i128::from(time.nsec)
}

/// `os.stat_result`. The fields after the first ten are named, since their order is not the same in
/// each version of Python.
pub(crate) fn stat_result<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.import(py, "os", "stat_result")?;
    let first = (
        attr.mode,
        attr.ino.0,
        0,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        attr.atime.sec,
        attr.mtime.sec,
        attr.ctime.sec,
    );
    let more = PyDict::new(py);
    for (time, name, name_ns) in [
        (attr.atime, pyo3::intern!(py, "st_atime"), pyo3::intern!(py, "st_atime_ns")),
        (attr.mtime, pyo3::intern!(py, "st_mtime"), pyo3::intern!(py, "st_mtime_ns")),
        (attr.ctime, pyo3::intern!(py, "st_ctime"), pyo3::intern!(py, "st_ctime_ns")),
    ] {
        more.set_item(name, seconds(time))?;
        more.set_item(name_ns, nanos_object(py, time)?)?;
    }
    more.set_item(pyo3::intern!(py, "st_blksize"), kedge_base::BLOCK_SIZE)?;
    more.set_item(pyo3::intern!(py, "st_blocks"), attr.blocks)?;
    more.set_item(pyo3::intern!(py, "st_rdev"), attr.rdev)?;
    class.call1((first, more))
}

/// Nanoseconds since 1970. Most times fit into 64 bits, which Python converts faster.
fn nanos_object(py: Python<'_>, time: Timespec) -> PyResult<Bound<'_, PyAny>> {
    let all = nanos(time);
    match i64::try_from(all) {
        Ok(short) => Ok(short.into_pyobject(py)?.into_any()),
        Err(_) => Ok(all.into_pyobject(py)?.into_any()),
    }
}

/// `os.statvfs_result`.
pub(crate) fn statvfs_result<'py>(
    py: Python<'py>,
    stat: &StatFs,
    is_read_only: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let flag = if is_read_only { libc::ST_RDONLY } else { 0 };
    let fields = (
        stat.block_size,
        stat.block_size,
        stat.blocks,
        stat.blocks_free,
        stat.blocks_available,
        stat.inodes,
        stat.inodes_free,
        stat.inodes_free,
        flag,
        stat.name_max,
    );
    py.import("os")?.getattr("statvfs_result")?.call1((fields,))
}
