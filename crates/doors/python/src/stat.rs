//! Attributes and statistics as objects of the classes of `os`.

use kedgefs::{Attr, StatFs, Timespec};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

const NANOS: i128 = 1_000_000_000;

fn seconds(time: Timespec) -> f64 {
    time.sec as f64 + f64::from(time.nsec) / NANOS as f64
}

fn nanos(time: Timespec) -> i128 {
    i128::from(time.sec) * NANOS + i128::from(time.nsec)
}

/// The fields of `os.stat_result` after the first ten, in the order of [`values`].
const NAMED: [&str; 9] = [
    "st_atime",
    "st_mtime",
    "st_ctime",
    "st_atime_ns",
    "st_mtime_ns",
    "st_ctime_ns",
    "st_blksize",
    "st_blocks",
    "st_rdev",
];
const POSITIONAL: usize = 10;
const VALUES: usize = POSITIONAL + NAMED.len();

/// The class `os.stat_result`, and for each of its fields the index in [`values`], if there is a
/// value.
struct Layout {
    class: Py<PyAny>,
    fields: Vec<Option<usize>>,
}

/// The order of the named fields differs between versions of Python. So this makes an object whose
/// fields hold their own positions, and reads them. The alternative is a dictionary of the named
/// fields, which the class accepts too; then each call would make each name as a new string.
fn layout(py: Python<'_>) -> PyResult<&'static Layout> {
    static LAYOUT: PyOnceLock<Layout> = PyOnceLock::new();
    LAYOUT.get_or_try_init(py, || {
        let class = py.import("os")?.getattr("stat_result")?;
        let len: usize = class.getattr("n_fields")?.extract()?;
        let numbered = class.call1((PyTuple::new(py, 0..len)?,))?;
        let mut fields: Vec<Option<usize>> = (0..len).map(|at| (at < POSITIONAL).then_some(at)).collect();
        for (value, name) in (POSITIONAL..).zip(NAMED) {
            let at: usize = numbered.getattr(name)?.extract()?;
            fields[at] = Some(value);
        }
        Ok(Layout { class: class.unbind(), fields })
    })
}

fn values<'py>(py: Python<'py>, attr: &Attr) -> PyResult<[Bound<'py, PyAny>; VALUES]> {
    Ok([
        attr.mode.into_bound_py_any(py)?,
        attr.ino.0.into_bound_py_any(py)?,
        0.into_bound_py_any(py)?,
        attr.nlink.into_bound_py_any(py)?,
        attr.uid.into_bound_py_any(py)?,
        attr.gid.into_bound_py_any(py)?,
        attr.size.into_bound_py_any(py)?,
        attr.atime.sec.into_bound_py_any(py)?,
        attr.mtime.sec.into_bound_py_any(py)?,
        attr.ctime.sec.into_bound_py_any(py)?,
        seconds(attr.atime).into_bound_py_any(py)?,
        seconds(attr.mtime).into_bound_py_any(py)?,
        seconds(attr.ctime).into_bound_py_any(py)?,
        nanos_object(py, attr.atime)?,
        nanos_object(py, attr.mtime)?,
        nanos_object(py, attr.ctime)?,
        kedge_base::BLOCK_SIZE.into_bound_py_any(py)?,
        attr.blocks.into_bound_py_any(py)?,
        attr.rdev.into_bound_py_any(py)?,
    ])
}

/// `os.stat_result`.
pub(crate) fn stat_result<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    let (layout, values, none) = (layout(py)?, values(py, attr)?, py.None().into_bound(py));
    let fields = layout.fields.iter().map(|value| value.map_or(&none, |at| &values[at]));
    layout.class.bind(py).call1((PyTuple::new(py, fields)?,))
}

/// Nanoseconds since 1970. Most times fit into 64 bits, which Python converts faster.
fn nanos_object(py: Python<'_>, time: Timespec) -> PyResult<Bound<'_, PyAny>> {
    let all = nanos(time);
    match i64::try_from(all) {
        Ok(short) => short.into_bound_py_any(py),
        Err(_) => all.into_bound_py_any(py),
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
