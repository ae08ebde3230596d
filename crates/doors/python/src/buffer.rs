//! Buffers of the caller, copied while the interpreter's lock is held.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PySlice;
use std::ops::Range;

/// The most bytes that are copied and then read or written at once. This bounds the memory of a
/// call, and one piece costs much more than the call around it.
pub(crate) const PIECE: usize = 1 << 20;

/// The contiguous memory of a buffer as bytes, whatever the type of its items.
pub(crate) struct Bytes<'py> {
    whole: PyBuffer<u8>,
    object: Bound<'py, PyAny>,
}

impl<'py> Bytes<'py> {
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        if let Ok(whole) = PyBuffer::get(object)
            && whole.is_c_contiguous()
        {
            return Ok(Bytes { whole, object: object.clone() });
        }
        let view = view(object)?;
        Ok(Bytes { whole: PyBuffer::get(&view)?, object: view })
    }

    pub(crate) fn len(&self) -> usize {
        self.whole.len_bytes()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.whole.readonly()
    }

    /// The buffer of a range of the bytes.
    fn slice(&self, range: Range<usize>) -> PyResult<PyBuffer<u8>> {
        let slice = PySlice::new(self.object.py(), range.start as isize, range.end as isize, 1);
        PyBuffer::get(&view(&self.object)?.get_item(slice)?)
    }

    /// A copy of a range of the bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> PyResult<Vec<u8>> {
        let py = self.object.py();
        if range == (0..self.len()) { self.whole.to_vec(py) } else { self.slice(range)?.to_vec(py) }
    }

    /// Overwrites the bytes from `at` on.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) -> PyResult<()> {
        let py = self.object.py();
        match bytes.len() {
            0 => Ok(()),
            len if len == self.len() => self.whole.copy_from_slice(py, bytes),
            len => self.slice(at..at + len)?.copy_from_slice(py, bytes),
        }
    }
}

fn view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = object.py().import("builtins")?.call_method1("memoryview", (object,))?;
    view.call_method1("cast", ("B",))
}
