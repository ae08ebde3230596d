//! Named threads, of the operating system or of a simulated [`crate::machine`].

/// Starts a named thread. No other place may create threads, because names make stack dumps and
/// `top -H` readable.
#[cfg(not(feature = "simulated"))]
#[allow(clippy::disallowed_methods)]
pub fn spawn_named<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// A started thread.
#[cfg(not(feature = "simulated"))]
pub type JoinHandle<T> = std::thread::JoinHandle<T>;

#[cfg(feature = "simulated")]
pub use on::{JoinHandle, run_in, spawn_named};

#[cfg(feature = "simulated")]
mod on {
    use crate::machine::{self, Seat, Step};
    use std::io;
    use std::thread::{Builder, Thread};

    /// A started thread.
    #[derive(Debug)]
    pub struct JoinHandle<T> {
        thread: std::thread::JoinHandle<T>,
        /// The thread's number in its machine; `None` for a thread without a machine.
        number: Option<usize>,
    }

    impl<T> JoinHandle<T> {
        pub fn join(self) -> std::thread::Result<T> {
            if let (Some(number), Some(Seat { machine, thread })) = (self.number, machine::seat()) {
                machine.join(thread, number);
            }
            self.thread.join()
        }

        pub fn is_finished(&self) -> bool {
            machine::point(Step::Atomic);
            self.thread.is_finished()
        }

        pub fn thread(&self) -> &Thread {
            self.thread.thread()
        }
    }

    /// Leaves the machine when dropped: at the end of the thread, even after a panic.
    struct Leaves(Seat);

    impl Drop for Leaves {
        fn drop(&mut self) {
            machine::sit(None);
            self.0.machine.leave(self.0.thread);
        }
    }

    /// Starts a named thread. It belongs to the machine of the calling thread, if there is one.
    #[allow(clippy::disallowed_methods)]
    pub fn spawn_named<T: Send + 'static>(
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let builder = Builder::new().name(name.to_owned());
        let Some(Seat { machine, thread: parent }) = machine::seat() else {
            return Ok(JoinHandle { thread: builder.spawn(body)?, number: None });
        };
        let number = machine.add(name);
        let seat = Seat { machine: machine.clone(), thread: number };
        let started = builder.spawn(move || run_in(seat, body));
        let thread = started.inspect_err(|_| machine.forget(number))?;
        machine.step(parent, Step::Spawn);
        Ok(JoinHandle { thread, number: Some(number) })
    }

    /// Runs `body` in the calling thread as the simulated thread `seat`, which
    /// [`crate::machine::Machine::add`] has registered.
    pub fn run_in<T>(seat: Seat, body: impl FnOnce() -> T) -> T {
        machine::sit(Some(seat.clone()));
        let leaves = Leaves(seat);
        leaves.0.machine.enter(leaves.0.thread);
        body()
    }
}
