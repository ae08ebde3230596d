//! The growing recording.

use crate::ahead::Ahead;
use crate::output::Output;
use crate::processes::{Found, Processes};
use crate::stack::Stacks;
use kedge_base::{Clock, SystemClock};
use kedge_crash::kcr::{KcrError, Writer};
use kedge_crash::{Call, Event};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, OnceLock};

/// The log of all threads. Its lock is held over a change of the file system and its record, so
/// that the recording has the order in which calls took effect. It is taken before any lock of the
/// file system. A thread that holds it waits for no lock of a process: the kernel may hold that
/// until this mount has served a WRITE, which needs the log.
pub struct Log {
    state: Mutex<State>,
    processes: Processes,
    clock: SystemClock,
    /// The command's standard output, if lines of it are promises.
    output: OnceLock<Arc<Output>>,
    /// Finds the callers of each call, if enabled.
    stacks: OnceLock<Stacks>,
}

pub struct State {
    out: Sink,
    /// Number of events so far.
    pub count: u64,
    pub marks: u64,
    /// Events of stores through mappings.
    pub stores: u64,
    /// Bytes of the events kept in memory, without the baseline.
    pub bytes: u64,
    /// Why recording stopped.
    failed: Option<KcrError>,
    /// For each inode: how often a failed fsync has dropped its pages.
    dropped: HashMap<u64, u64>,
    drops: u64,
}

/// What a recording has.
pub struct Counts {
    pub events: u64,
    pub marks: u64,
    /// Events of stores through mappings.
    pub stores: u64,
}

/// The destination of events.
enum Sink {
    File(Writer<Ahead>),
    /// Kept in memory, for a crash at any moment.
    Memory(Vec<Event>),
    /// Closed: the recording could not be written, or everything in it counts as durable.
    Closed,
    /// Closed by a power failure. Later calls are in no state that the crash could leave.
    Cut,
}

impl State {
    /// How often a failed fsync has dropped pages of this inode, or of any inode.
    pub fn drops(&self, ino: Option<u64>) -> u64 {
        ino.map_or(self.drops, |ino| self.dropped.get(&ino).copied().unwrap_or(0))
    }
}

impl Log {
    pub fn new(file: File) -> Result<Log, KcrError> {
        Log::on_clock(file, SystemClock::default())
    }

    /// A recording whose times are those of `clock`. Recordings with one clock can be put in order.
    pub fn on_clock(file: File, clock: SystemClock) -> Result<Log, KcrError> {
        let out = Writer::new(Ahead::new(file)?)?;
        Ok(Log { clock, ..Log::with(Sink::File(out), 0) })
    }

    /// A recording in memory that starts with these events.
    pub fn in_memory(events: Vec<Event>) -> Log {
        let count = events.len() as u64;
        Log::with(Sink::Memory(events), count)
    }

    /// The recording with times of a clock that others share.
    pub fn with_clock(self, clock: SystemClock) -> Log {
        Log { clock, ..self }
    }

    fn with(out: Sink, count: u64) -> Log {
        let state = State {
            out,
            count,
            marks: 0,
            stores: 0,
            bytes: 0,
            failed: None,
            dropped: HashMap::new(),
            drops: 0,
        };
        let (output, stacks) = (OnceLock::new(), OnceLock::new());
        let (state, processes) = (Mutex::new(state), Processes::default());
        Log { state, processes, clock: SystemClock::default(), output, stacks }
    }

    /// Records the callers of each later call.
    pub fn look_at_stacks(&self, stacks: Stacks) {
        // Called once for each command.
        assert!(self.stacks.set(stacks).is_ok(), "a log looks at stacks or does not");
    }

    /// Calls whose callers were searched for and not found.
    pub fn without_stack(&self) -> u64 {
        self.stacks.get().map_or(0, Stacks::missing)
    }

    /// Reads this output before each later call.
    pub fn listen(&self, output: Arc<Output>) {
        // Called once for each command.
        assert!(self.output.set(output).is_ok(), "a log listens once");
    }

    /// Locks the log and first records the promises printed so far.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if let Some(output) = self.output.get() {
            output.take_in(|text| self.put(&mut state, 0, 0, 0, Call::Mark { text }));
        }
        state
    }

    /// Looks at the process of a thread, before the log is locked for its call. See
    /// [`Processes::look_at`].
    pub fn look_at(&self, tid: u32, may_wait: bool) {
        self.processes.look_at(tid, may_wait);
    }

    /// Records a call. `false`: power failed before, and the call is in no state that the crash
    /// could leave.
    pub fn append(&self, state: &mut State, tid: u32, errno: i32, call: Call) -> bool {
        let pid = match self.processes.of(tid) {
            Found::Known(pid) => pid,
            // The first call of a process gets an event.
            Found::New { pid, name, command } => {
                self.put(state, pid, tid, 0, Call::Process { pid, name, command });
                pid
            }
        };
        self.put(state, pid, tid, errno, call);
        !matches!(state.out, Sink::Cut)
    }

    fn put(&self, state: &mut State, pid: u32, tid: u32, errno: i32, call: Call) {
        let time = u64::try_from(self.clock.monotonic().as_nanos()).unwrap_or(u64::MAX);
        let is_mark = matches!(call, Call::Mark { .. });
        let is_store = matches!(call, Call::Write { mapped: true, .. });
        // A request that no thread made, such as writeback by the kernel, has no stack.
        let stack = match self.stacks.get().filter(|_| tid != 0 && !matches!(call, Call::Process { .. })) {
            Some(stacks) => stacks.of(pid, tid),
            None => Vec::new(),
        };
        let event = Event { time, pid, tid, errno, call, stack };
        let put = match &mut state.out {
            Sink::Closed | Sink::Cut => return,
            Sink::Memory(events) => {
                state.bytes += size_of::<Event>() as u64 + event.call.payload() as u64;
                events.push(event);
                Ok(())
            }
            // Written to the kernel at once: a killed recorder loses no call that has returned.
            Sink::File(out) => out.append(&event),
        };
        match put {
            Ok(()) => {
                state.count += 1;
                state.marks += u64::from(is_mark);
                state.stores += u64::from(is_store);
            }
            // A recording with a hole would blame the program for calls it did not omit, so
            // recording stops here, and the end reports it.
            Err(e) => {
                tracing::error!("the recording cannot be written: {e}");
                state.failed = Some(e);
                state.out = Sink::Closed;
            }
        }
    }

    /// Cuts the log at a power failure and returns the events kept. An fsync that completes later
    /// finds the log cut and fails.
    pub fn cut(&self) -> Vec<Event> {
        self.end_with(Sink::Cut)
    }

    /// Marks everything kept as durable and returns it. An fsync that completes later has nothing
    /// to add, and succeeds.
    pub fn settle(&self) -> Vec<Event> {
        self.end_with(Sink::Closed)
    }

    fn end_with(&self, end: Sink) -> Vec<Event> {
        match std::mem::replace(&mut self.state.lock().out, end) {
            Sink::Memory(events) => events,
            Sink::File(_) | Sink::Closed | Sink::Cut => Vec::new(),
        }
    }

    /// Shows the events kept to `look`, which leaves them as they are. No call is recorded
    /// meanwhile.
    pub fn look(&self, look: impl FnOnce(&mut Vec<Event>)) {
        if let Sink::Memory(events) = &mut self.state.lock().out {
            look(events);
        }
    }

    /// Changes the events kept because an fsync of this inode failed and dropped its pages.
    pub fn revise(&self, ino: u64, revise: impl FnOnce(&mut Vec<Event>)) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Sink::Memory(events) = &mut state.out {
            revise(events);
            state.drops += 1;
            *state.dropped.entry(ino).or_default() += 1;
        }
    }

    /// Ends the recording, and reports whether all of it was written.
    pub fn finish(&self) -> Result<Counts, KcrError> {
        let mut state = self.state.lock();
        if let Some(e) = state.failed.take() {
            return Err(e);
        }
        if let Sink::File(out) = std::mem::replace(&mut state.out, Sink::Closed) {
            out.into_inner().end()?;
        }
        Ok(Counts { events: state.count, marks: state.marks, stores: state.stores })
    }
}
