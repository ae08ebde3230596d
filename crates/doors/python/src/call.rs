//! The boundary: each call of the engine runs here, without the interpreter's lock.

use crate::open::Opened;
use crate::path::PathArg;
use kedge_host::embed::{Fault, Outcome};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs `body` without the interpreter's lock. A panic, which is a broken invariant of the file
/// system, becomes EIO.
pub(crate) fn alone<T: Send>(py: Python<'_>, body: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    py.detach(|| {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Fault::panicked(&*panic)))
    })
}

/// [`alone`] on an open image. After a panic its file system is shut down: nothing that the panic
/// left incomplete is written.
pub(crate) fn on<T: Send>(
    py: Python<'_>,
    opened: Arc<Opened>,
    body: impl FnOnce(&Opened) -> Outcome<T> + Send,
) -> Outcome<T> {
    py.detach(move || {
        catch_unwind(AssertUnwindSafe(|| body(&opened))).unwrap_or_else(|panic| {
            // Without a flush nothing can fail here.
            let _ = opened.fs().shutdown(false);
            Err(Fault::panicked(&*panic))
        })
    })
}

/// An `OSError`, which chooses its subclass by the number. The text is Python's own for the number,
/// unless the engine's says more.
pub(crate) fn os_error(py: Python<'_>, fault: Fault, paths: &[&PathArg<'_>]) -> PyErr {
    let Fault { errno, text } = fault;
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

/// `io.UnsupportedOperation`, as for a file that is not open for what is asked of it.
pub(crate) fn unsupported(py: Python<'_>, text: &str) -> PyErr {
    let class = py.import("io").and_then(|io| io.getattr("UnsupportedOperation"));
    match class.and_then(|class| class.call1((text,))) {
        Ok(error) => PyErr::from_value(error),
        Err(e) => e,
    }
}
