//! The boundary: each call of the engine runs here, without the interpreter's lock.

use crate::open::Opened;
use crate::path::PathArg;
use kedge_host::embed::{Fault, Outcome};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(crate) const CLOSED: &str = "operation on a closed file system";

/// Runs `body` without the interpreter's lock. A panic, which is a broken invariant of the file
/// system, becomes EIO.
pub(crate) fn alone<T: Send>(py: Python<'_>, body: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Fault::panicked(&*panic))))
}

/// Why a call on an open image failed.
pub(crate) enum Refusal {
    /// Another thread has closed the image since the call began.
    Closed,
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::Fault(fault)
    }
}

/// Runs `body` as [`alone`] does, on an open image that no close ends meanwhile. After a panic its
/// file system is shut down: nothing that the panic left incomplete is written.
pub(crate) fn on<T: Send>(
    py: Python<'_>,
    opened: Arc<Opened>,
    body: impl FnOnce(&Opened) -> Outcome<T> + Send,
) -> Result<T, Refusal> {
    py.detach(move || {
        let Some(_inside) = opened.enter() else { return Err(Refusal::Closed) };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&opened))).unwrap_or_else(|panic| {
            // A shutdown without a flush cannot fail.
            let _ = opened.fs().shutdown(false);
            Err(Fault::panicked(&*panic))
        });
        Ok(outcome?)
    })
}

/// Makes an `OSError`; Python chooses the subclass by the errno. The text is Python's own for this
/// errno, unless the engine's text says more.
///
/// A closed image gives the same `ValueError` as a closed file of Python.
pub(crate) fn os_error(py: Python<'_>, why: impl Into<Refusal>, paths: &[&PathArg<'_>]) -> PyErr {
    let Refusal::Fault(Fault { errno, text }) = why.into() else {
        return PyValueError::new_err(CLOSED);
    };
    let usual = py.import("os").and_then(|os| os.call_method1("strerror", (errno,))?.extract::<String>());
    let text = match usual {
        Ok(usual) if usual.eq_ignore_ascii_case(&text) => usual,
        _ => text,
    };
    match paths {
        [] => PyOSError::new_err((errno, text)),
        [one] => PyOSError::new_err((errno, text, one.object().clone().unbind())),
        [from, to, ..] => {
            let (from, to) = (from.object().clone().unbind(), to.object().clone().unbind());
            PyOSError::new_err((errno, text, from, py.None(), to))
        }
    }
}

/// Makes an `io.UnsupportedOperation`, as for a write to a file that is open only for reading.
pub(crate) fn unsupported(py: Python<'_>, text: &str) -> PyErr {
    let class = py.import("io").and_then(|io| io.getattr("UnsupportedOperation"));
    match class.and_then(|class| class.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(e) => e,
    }
}
