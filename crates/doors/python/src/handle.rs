//! The class `Handle`: an open file. `kedgefs.RawFile` is the `io.RawIOBase` around it.

use crate::buffer::{Bytes, PIECE};
use crate::call::{on, os_error, unsupported};
use crate::open::{OpenFile, Opened};
use crate::stat::stat_result;
use kedge_host::embed::{Fault, Outcome};
use kedgefs::SeekKind;
use parking_lot::RwLock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// A read of more bytes first queries the file's size, so that it does not allocate memory that the
/// file cannot fill.
const ASK_SIZE: usize = 64 << 10;

/// How a file was opened.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Each write goes to the end of the file.
    pub(crate) append: bool,
}

/// An open file.
#[pyclass(frozen, module = "kedgefs._kedgefs")]
pub(crate) struct Handle {
    /// `None` once it is closed.
    file: RwLock<Option<Arc<OpenFile>>>,
    access: Access,
}

fn position(offset: i64) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Fault::invalid(format!("offset {offset} is negative")))
}

impl Handle {
    pub(crate) fn new(file: OpenFile, access: Access) -> Handle {
        Handle { file: RwLock::new(Some(Arc::new(file))), access }
    }

    fn open(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let file = self.file.read().clone();
        let file = file.ok_or_else(|| PyValueError::new_err("I/O operation on closed file."))?;
        file.opened.check_process().map_err(|fault| os_error(py, fault, &[]))?;
        match file.opened.is_closed() {
            false => Ok(file),
            true => Err(PyValueError::new_err("I/O operation on a file of a closed file system.")),
        }
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&OpenFile, &Opened) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        let file = self.open(py)?;
        let opened = file.opened.clone();
        on(py, opened, move |opened| body(&file, opened)).map_err(|fault| os_error(py, fault, &[]))
    }

    fn check_read(&self, py: Python<'_>) -> PyResult<()> {
        if self.access.read { Ok(()) } else { Err(unsupported(py, "File not open for reading")) }
    }

    fn check_write(&self, py: Python<'_>) -> PyResult<()> {
        if self.access.write { Ok(()) } else { Err(unsupported(py, "File not open for writing")) }
    }

    /// Reads up to `len` bytes, at `at` or at the position, which then moves.
    fn read_bytes<'py>(&self, py: Python<'py>, len: usize, at: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_read(py)?;
        let len = match len {
            0..=ASK_SIZE => len,
            _ => self.run(py, |file, _| {
                let from = at.map_or_else(|| Ok(*file.position.lock()), position)?;
                let left = file.file().metadata()?.size.saturating_sub(from);
                Ok(len.min(usize::try_from(left).unwrap_or(usize::MAX)))
            })?,
        };
        let mut got = 0;
        let bytes = PyBytes::new_with(py, len, |buf| {
            got = self.run(py, |file, _| read(file, buf, at))?;
            Ok(())
        })?;
        if got == len { Ok(bytes) } else { Ok(PyBytes::new(py, &bytes.as_bytes()[..got])) }
    }

    fn write_bytes(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at: Option<i64>) -> PyResult<usize> {
        self.check_write(py)?;
        let append = self.access.append && at.is_none();
        // Python never changes an object of type `bytes`, so it is not copied.
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return self.run(py, |file, opened| write(file, opened, bytes, at, append));
        }
        let buffer = Bytes::of(data)?;
        // An append is one write: no other append may come between reading the size and the write.
        let piece = if append { buffer.len() } else { PIECE };
        let mut done = 0;
        while done < buffer.len() || done == 0 {
            let bytes = buffer.part(done..(done + piece).min(buffer.len()))?;
            let at = at.map(|at| at.saturating_add(done as i64));
            let wrote = match self.run(py, |file, opened| write(file, opened, &bytes, at, append)) {
                // Return the bytes written so far. The next call returns the error.
                Err(_) if done > 0 => break,
                wrote => wrote?,
            };
            done += wrote;
            if wrote < bytes.len() || bytes.is_empty() {
                break;
            }
        }
        Ok(done)
    }
}

fn read(file: &OpenFile, buf: &mut [u8], at: Option<i64>) -> Outcome<usize> {
    if let Some(at) = at {
        return Ok(file.file().read_at(position(at)?, buf)?);
    }
    let mut here = file.position.lock();
    let got = file.file().read_at(*here, buf)?;
    *here += got as u64;
    Ok(got)
}

fn write(file: &OpenFile, opened: &Opened, data: &[u8], at: Option<i64>, append: bool) -> Outcome<usize> {
    if let Some(at) = at {
        return Ok(file.file().write_at(position(at)?, data)?);
    }
    let mut here = file.position.lock();
    if append {
        let _alone = opened.append_lock(file.file()).lock();
        let end = file.file().metadata()?.size;
        let wrote = file.file().write_at(end, data)?;
        *here = end + wrote as u64;
        return Ok(wrote);
    }
    let wrote = file.file().write_at(*here, data)?;
    *here += wrote as u64;
    Ok(wrote)
}

fn seek(file: &OpenFile, opened: &Opened, offset: i64, whence: i32) -> Outcome<u64> {
    let mut here = file.position.lock();
    let from = |start: u64| {
        let target = start.checked_add_signed(offset).filter(|target| i64::try_from(*target).is_ok());
        target.ok_or_else(|| Fault::invalid("a position before the beginning of the file, or beyond any"))
    };
    let look = |kind| Ok::<_, Fault>(opened.fs().seek(file.file().ino(), position(offset)?, kind)?);
    *here = match whence {
        libc::SEEK_SET => from(0)?,
        libc::SEEK_CUR => from(*here)?,
        libc::SEEK_END => from(file.file().metadata()?.size)?,
        libc::SEEK_DATA => look(SeekKind::Data)?,
        libc::SEEK_HOLE => look(SeekKind::Hole)?,
        _ => return Err(Fault::invalid(format!("whence {whence}"))),
    };
    Ok(*here)
}

#[pymethods]
impl Handle {
    /// Reads up to `size` bytes at the position.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.read_bytes(py, size, None)
    }

    /// Reads up to `size` bytes at `offset`; the position stays.
    fn pread<'py>(&self, py: Python<'py>, size: usize, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.read_bytes(py, size, Some(offset))
    }

    /// Reads from the position to the end of the file.
    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read_bytes(py, usize::MAX, None)
    }

    /// Reads into a buffer, and returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.check_read(py)?;
        let buffer = Bytes::of(buffer)?;
        if buffer.is_read_only() {
            return Err(pyo3::exceptions::PyTypeError::new_err("the buffer cannot be written"));
        }
        let mut done = 0;
        let mut piece = vec![0; buffer.len().min(PIECE)];
        loop {
            let want = piece.len().min(buffer.len() - done);
            let part = &mut piece[..want];
            let got = match self.run(py, |file, _| read(file, part, None)) {
                // Return the bytes read so far. The next call returns the error.
                Err(_) if done > 0 => break,
                got => got?,
            };
            buffer.put(done, &piece[..got])?;
            done += got;
            if got < want || done == buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes at the position, or at the end of a file that is open to append.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.write_bytes(py, data, None)
    }

    /// Writes at `offset`; the position stays.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: i64) -> PyResult<usize> {
        self.write_bytes(py, data, Some(offset))
    }

    #[pyo3(signature = (offset, whence=0))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        self.run(py, |file, opened| seek(file, opened, offset, whence))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |file, _| Ok(*file.position.lock()))
    }

    /// Sets the size: to `size`, or to the position.
    #[pyo3(signature = (size=None))]
    fn truncate(&self, py: Python<'_>, size: Option<i64>) -> PyResult<u64> {
        self.check_write(py)?;
        self.run(py, |file, _| {
            let size = match size {
                Some(size) => {
                    u64::try_from(size).map_err(|_| Fault::invalid(format!("size {size} is negative")))?
                }
                None => *file.position.lock(),
            };
            file.file().set_len(size)?;
            Ok(size)
        })
    }

    /// Makes data, attributes and name durable.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |file, _| Ok(file.file().sync_all()?))
    }

    /// Makes the data durable.
    fn fdatasync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |file, _| Ok(file.file().sync_data()?))
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let attr = self.run(py, |file, _| Ok(file.file().metadata()?))?;
        stat_result(py, &attr)
    }

    /// Closes the file. Makes nothing durable. Calls of other threads that are under way end as
    /// usual.
    fn close(&self, py: Python<'_>) {
        let file = self.file.write().take();
        // Dropping the last reference to a file without a name deletes the file.
        py.detach(move || drop(file));
    }

    /// Whether the process is a child of the one that opened the file.
    #[getter]
    fn is_of_parent(&self) -> bool {
        self.file.read().as_ref().is_some_and(|file| !file.opened.is_ours())
    }
}
