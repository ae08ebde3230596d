//! Paths and names: text, bytes or `os.PathLike`, as the functions of `os` take them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A path of the caller.
pub(crate) struct PathArg<'py> {
    bytes: OsString,
    is_bytes: bool,
    object: Bound<'py, PyAny>,
}

impl<'py> PathArg<'py> {
    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.bytes)
    }

    /// The object that the caller passed, for the text of an error.
    pub(crate) fn object(&self) -> &Bound<'py, PyAny> {
        &self.object
    }

    /// Converts a name of the file system to the type of the path: bytes or text.
    pub(crate) fn named(&self, name: &OsStr) -> PyResult<Bound<'py, PyAny>> {
        named(self.object.py(), name, self.is_bytes)
    }
}

/// A name as text, with surrogate escapes for bytes that are not UTF-8, or as bytes.
pub(crate) fn named<'py>(py: Python<'py>, name: &OsStr, is_bytes: bool) -> PyResult<Bound<'py, PyAny>> {
    match is_bytes {
        true => Ok(PyBytes::new(py, name.as_bytes()).into_any()),
        false => Ok(name.into_pyobject(py)?.into_any()),
    }
}

impl<'py> FromPyObject<'_, 'py> for PathArg<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<PathArg<'py>> {
        let given = object.to_owned();
        let plain = match given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            true => given.clone(),
            false => given.py().import("os")?.call_method1("fspath", (&given,))?,
        };
        let (bytes, is_bytes) = match plain.cast::<PyBytes>() {
            Ok(bytes) => (OsString::from_vec(bytes.as_bytes().to_vec()), true),
            Err(_) => (plain.extract::<OsString>()?, false),
        };
        if bytes.as_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(PathArg { bytes, is_bytes, object: given })
    }
}
