//! The class `Volume`: an open image. `kedgefs.FileSystem` is the class that programs see; it adds
//! what needs no engine.

use crate::buffer::Bytes;
use crate::call::{CLOSED, alone, on, os_error};
use crate::handle::Handle;
use crate::open::{Opened, enter};
use crate::path::{PathArg, named};
use crate::stat::{stat_result, statvfs_result};
use crate::{attributes, data, limits, names, trees};
use kedge_host::embed::{self, Fault, Outcome};
use kedgefs::{FormatOptions, SetAttr, SetLimit, Switches};
use parking_lot::RwLock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;

type TreeRow<'py> = (Bound<'py, PyAny>, bool, i64, u64);
/// The directory's path; the maxima of bytes and files; the used bytes and files.
type LimitRow<'py> = (Bound<'py, PyAny>, Option<u64>, Option<u64>, u64, u64);

/// An open image.
#[pyclass(frozen, subclass, module = "kedgefs._kedgefs")]
pub(crate) struct Volume {
    /// `None` once it is closed.
    opened: RwLock<Option<Arc<Opened>>>,
    read_only: bool,
}

/// Makes an image in a new file.
#[pyfunction]
#[pyo3(signature = (image, size, *, label="", log_size=None, immutable=false))]
pub(crate) fn mkfs(
    py: Python<'_>,
    image: PathArg<'_>,
    size: u64,
    label: &str,
    log_size: Option<u64>,
    immutable: bool,
) -> PyResult<()> {
    let options = FormatOptions { label: label.to_owned(), log_size, immutable, ..FormatOptions::default() };
    let path = image.path();
    let made = alone(py, || {
        enter()?;
        embed::create(path, size, &options)
    });
    made.map_err(|fault| os_error(py, fault, &[&image]))
}

/// What `kedgefs.open` gives to the constructor: an image with a list of mount options.
#[pyfunction]
pub(crate) fn open(py: Python<'_>, image: PathArg<'_>, options: &str, read_only: bool) -> PyResult<Opening> {
    let path = image.path();
    let opened = alone(py, || Opened::image(path, options, !read_only));
    let opened = opened.map_err(|fault| os_error(py, fault, &[&image]))?;
    Ok(Opening::new(opened, read_only))
}

/// As `open`, for a new file system in memory.
#[pyfunction]
pub(crate) fn memory(py: Python<'_>, size: u64) -> PyResult<Opening> {
    let opened = alone(py, || Opened::memory(size)).map_err(|fault| os_error(py, fault, &[]))?;
    Ok(Opening::new(opened, false))
}

/// An image that `Volume` will take: a class that Python derives from `Volume` makes its own
/// objects.
#[pyclass(frozen, module = "kedgefs._kedgefs")]
pub(crate) struct Opening {
    opened: RwLock<Option<Arc<Opened>>>,
    read_only: bool,
}

impl Opening {
    fn new(opened: Opened, read_only: bool) -> Opening {
        Opening { opened: RwLock::new(Some(Arc::new(opened))), read_only }
    }
}

impl Volume {
    fn opened(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        let opened = self.opened.read().clone();
        let opened = opened.ok_or_else(|| PyValueError::new_err(CLOSED))?;
        opened.check_process().map_err(|fault| os_error(py, fault, &[]))?;
        Ok(opened)
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        paths: &[&PathArg<'_>],
        body: impl FnOnce(&Opened) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        on(py, self.opened(py)?, body).map_err(|fault| os_error(py, fault, paths))
    }
}

#[pymethods]
impl Volume {
    #[new]
    fn new(opening: &Opening) -> PyResult<Volume> {
        let opened = opening.opened.write().take();
        let opened = opened.ok_or_else(|| PyValueError::new_err("it has its file system already"))?;
        Ok(Volume { opened: RwLock::new(Some(opened)), read_only: opening.read_only })
    }

    /// Makes everything durable and closes the image, whatever the call returns.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(opened) = self.opened.write().take() else { return Ok(()) };
        if !opened.is_ours() {
            return Ok(());
        }
        alone(py, || opened.close()).map_err(|fault| os_error(py, fault, &[]))
    }

    /// Whether the file system is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.read().is_none()
    }

    /// Whether nothing can be changed.
    #[getter]
    fn readonly(&self) -> bool {
        self.read_only
    }

    /// Whether the process is a child of the one that opened the image.
    #[getter]
    fn _is_of_parent(&self) -> bool {
        self.opened.read().as_ref().is_some_and(|opened| !opened.is_ours())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, &[], |opened| Ok(opened.fs().sync()?))
    }

    fn freeze(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, &[], |opened| Ok(opened.fs().freeze()?))
    }

    fn thaw(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, &[], |opened| Ok(opened.fs().thaw()?))
    }

    fn _set_options(&self, py: Python<'_>, list: &str) -> PyResult<()> {
        self.run(py, &[], |opened| {
            let switches: Switches = list.parse().map_err(Fault::from)?;
            Ok(opened.fs().remount(&switches)?)
        })
    }

    fn _info(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, &[], |opened| Ok(opened.fs().info_json()))
    }

    fn _stats(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, &[], |opened| Ok(opened.fs().stats_json()))
    }

    fn statvfs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stat = self.run(py, &[], |opened| Ok(opened.fs().statfs()))?;
        statvfs_result(py, &stat, self.read_only)
    }

    // ----- files -----

    /// `flags` are those of `os.open`, `mode` the permission bits of a file that is created.
    fn _open(&self, py: Python<'_>, path: PathArg<'_>, flags: i32, mode: u32) -> PyResult<Handle> {
        let (access, how) = names::how(flags, mode);
        let (opened, at) = (self.opened(py)?, path.path());
        let again = opened.clone();
        let file = on(py, opened, move |_| names::open(again, at, access, &how));
        Ok(Handle::new(file.map_err(|fault| os_error(py, fault, &[&path]))?, access))
    }

    #[pyo3(signature = (path, *, datasync=false))]
    fn _fsync(&self, py: Python<'_>, path: PathArg<'_>, datasync: bool) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| names::sync(opened, at, datasync))
    }

    fn truncate(&self, py: Python<'_>, path: PathArg<'_>, length: i64) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| {
            let size = u64::try_from(length);
            let size = size.map_err(|_| Fault::invalid(format!("size {length} is negative")))?;
            attributes::set(opened, at, true, &SetAttr { size: Some(size), ..SetAttr::default() })
        })
    }

    // ----- attributes -----

    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathArg<'py>,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let at = path.path();
        let attr = self.run(py, &[&path], |opened| attributes::find(opened, at, follow_symlinks))?;
        stat_result(py, &attr)
    }

    fn lstat<'py>(&self, py: Python<'py>, path: PathArg<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.stat(py, path, false)
    }

    fn chmod(&self, py: Python<'_>, path: PathArg<'_>, mode: u32) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| {
            let mode = Some(names::check_mode(mode)?);
            attributes::set(opened, at, true, &SetAttr { mode, ..SetAttr::default() })
        })
    }

    #[pyo3(signature = (path, uid, gid, *, follow_symlinks=true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| {
            let (uid, gid) = (attributes::owner(uid)?, attributes::owner(gid)?);
            attributes::set(opened, at, follow_symlinks, &SetAttr { uid, gid, ..SetAttr::default() })
        })
    }

    #[pyo3(signature = (path, atime, mtime, *, follow_symlinks))]
    fn _utime(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        atime: Option<i128>,
        mtime: Option<i128>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| {
            let (atime, mtime) = (Some(attributes::time(atime)?), Some(attributes::time(mtime)?));
            attributes::set(opened, at, follow_symlinks, &SetAttr { atime, mtime, ..SetAttr::default() })
        })
    }

    #[pyo3(signature = (path, attribute, *, follow_symlinks=true))]
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathArg<'py>,
        attribute: PathArg<'py>,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (at, name) = (path.path(), attribute.path().as_os_str().as_encoded_bytes());
        let value =
            self.run(py, &[&path], |opened| attributes::get_xattr(opened, at, follow_symlinks, name))?;
        Ok(PyBytes::new(py, &value))
    }

    #[pyo3(signature = (path, attribute, value, flags=0, *, follow_symlinks=true))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        attribute: PathArg<'_>,
        value: &Bound<'_, PyAny>,
        flags: i32,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (at, name) = (path.path(), attribute.path().as_os_str().as_encoded_bytes());
        let buffer = crate::buffer::Bytes::of(value)?;
        let value = buffer.part(0..buffer.len())?;
        self.run(py, &[&path], |opened| {
            attributes::set_xattr(opened, at, follow_symlinks, name, &value, flags)
        })
    }

    #[pyo3(signature = (path=None, *, follow_symlinks=true))]
    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: Option<PathArg<'py>>,
        follow_symlinks: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let path = or_root(py, path)?;
        let at = path.path();
        let names = self.run(py, &[&path], |opened| {
            let found = attributes::find(opened, at, follow_symlinks)?;
            Ok(opened.fs().listxattr(found.ino)?)
        })?;
        use std::os::unix::ffi::OsStrExt;
        names.iter().map(|name| named(py, std::ffi::OsStr::from_bytes(name), false)).collect()
    }

    #[pyo3(signature = (path, attribute, *, follow_symlinks=true))]
    fn removexattr(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        attribute: PathArg<'_>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (at, name) = (path.path(), attribute.path().as_os_str().as_encoded_bytes());
        self.run(py, &[&path], |opened| {
            let found = attributes::find(opened, at, follow_symlinks)?;
            Ok(opened.fs().removexattr(found.ino, name)?)
        })
    }

    // ----- names -----

    #[pyo3(signature = (path=None))]
    fn listdir<'py>(&self, py: Python<'py>, path: Option<PathArg<'py>>) -> PyResult<Bound<'py, PyList>> {
        let path = or_root(py, path)?;
        let at = path.path();
        let entries = self.run(py, &[&path], |opened| names::entries(opened, at))?;
        let names: PyResult<Vec<_>> = entries.iter().map(|entry| path.named(&entry.name)).collect();
        PyList::new(py, names?)
    }

    /// Name, inode number and type bits of each entry.
    fn _entries<'py>(
        &self,
        py: Python<'py>,
        path: PathArg<'py>,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, u64, u32)>> {
        let at = path.path();
        let entries = self.run(py, &[&path], |opened| names::entries(opened, at))?;
        let each =
            |entry: &kedgefs::Entry| Ok((path.named(&entry.name)?, entry.ino.0, entry.kind.mode_bits()));
        entries.iter().map(each).collect()
    }

    #[pyo3(signature = (path, mode=0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathArg<'_>, mode: u32) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| Ok(opened.root().create_dir_with(at, names::check_mode(mode)?)?))
    }

    fn rmdir(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| Ok(opened.root().remove_dir(at)?))
    }

    /// Removes a directory and everything below it.
    fn rmtree(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| Ok(opened.root().remove_dir_all(at)?))
    }

    fn unlink(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| Ok(opened.root().remove_file(at)?))
    }

    fn remove(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        self.unlink(py, path)
    }

    #[pyo3(signature = (src, dst, *, mode="replace"))]
    fn rename(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>, mode: &str) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| names::rename(opened, from, to, mode))
    }

    fn replace(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        self.rename(py, src, dst, "replace")
    }

    fn link(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| Ok(opened.root().hard_link(from, to)?))
    }

    fn symlink(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (target, at) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| Ok(opened.root().symlink(target, at)?))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: PathArg<'py>) -> PyResult<Bound<'py, PyAny>> {
        let at = path.path();
        let target = self.run(py, &[&path], |opened| Ok(opened.root().read_link(at)?))?;
        path.named(target.as_os_str())
    }

    // ----- clones, atomic writes, limits -----

    fn clone_file(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| data::clone_file(opened, from, to))
    }

    #[pyo3(signature = (src, dst, *, offset=0, dst_offset=0, length=0))]
    fn clone_range(
        &self,
        py: Python<'_>,
        src: PathArg<'_>,
        dst: PathArg<'_>,
        offset: i64,
        dst_offset: i64,
        length: i64,
    ) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        let range = data::Range { offset, target: dst_offset, length };
        self.run(py, &[&src, &dst], |opened| data::clone_range(opened, from, to, &range))
    }

    fn write_atomic(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        pieces: Vec<(i64, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let copied = pieces.iter().map(|(offset, data)| {
            let buffer = Bytes::of(data)?;
            Ok((*offset, buffer.part(0..buffer.len())?))
        });
        let (at, pieces) = (path.path(), copied.collect::<PyResult<Vec<_>>>()?);
        self.run(py, &[&path], |opened| data::write_atomic(opened, at, &pieces))
    }

    /// Sets each maximum whose flag is true, and keeps the others.
    fn _set_limit(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        size: (bool, Option<u64>),
        files: (bool, Option<u64>),
    ) -> PyResult<()> {
        let at = path.path();
        let change = SetLimit { bytes: size.0.then_some(size.1), files: files.0.then_some(files.1) };
        self.run(py, &[&path], |opened| limits::set(opened, at, change))
    }

    fn _limit_of<'py>(&self, py: Python<'py>, path: PathArg<'py>) -> PyResult<Option<LimitRow<'py>>> {
        let at = path.path();
        let found = self.run(py, &[&path], |opened| limits::of(opened, at))?;
        let row = |limit: limits::Limit| {
            let dir = named(py, &limit.path, false)?;
            Ok((dir, limit.size, limit.files, limit.size_used, limit.files_used))
        };
        found.map(row).transpose()
    }

    // ----- forks and snapshots -----

    #[pyo3(signature = (src, dst, *, readonly=false))]
    fn fork(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>, readonly: bool) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| trees::fork(opened, from, to, readonly))
    }

    fn delete_tree(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let at = path.path();
        self.run(py, &[&path], |opened| trees::delete(opened, at))
    }

    fn rename_tree(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (from, to) = (src.path(), dst.path());
        self.run(py, &[&src, &dst], |opened| trees::rename(opened, from, to))
    }

    fn roll_back(&self, py: Python<'_>, snapshot: PathArg<'_>, tree: PathArg<'_>) -> PyResult<()> {
        let (from, to) = (snapshot.path(), tree.path());
        self.run(py, &[&snapshot, &tree], |opened| trees::roll_back(opened, from, to))
    }

    #[pyo3(signature = (fork, tree, *, force=false))]
    fn commit(&self, py: Python<'_>, fork: PathArg<'_>, tree: PathArg<'_>, force: bool) -> PyResult<()> {
        let (from, to) = (fork.path(), tree.path());
        self.run(py, &[&fork, &tree], |opened| trees::commit(opened, from, to, force))
    }

    /// Path, whether it is read-only, time and inodes of each tree.
    fn _trees<'py>(&self, py: Python<'py>) -> PyResult<Vec<TreeRow<'py>>> {
        let all = self.run(py, &[], trees::all)?;
        all.iter()
            .map(|tree| Ok((named(py, &tree.path, false)?, tree.read_only, tree.created, tree.inodes)))
            .collect()
    }

    /// For tests of the boundary.
    #[cfg(debug_assertions)]
    fn _panic(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, &[], |_| panic!("asked for by a test"))
    }
}

fn or_root<'py>(py: Python<'py>, path: Option<PathArg<'py>>) -> PyResult<PathArg<'py>> {
    match path {
        Some(path) => Ok(path),
        None => pyo3::types::PyString::new(py, "/").into_any().extract(),
    }
}
