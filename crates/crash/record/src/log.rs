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

/// The log of all threads. Its lock is held over a change of the file system and over its record,
/// so that the recording has the order in which calls took effect. The lock is taken before any
/// lock of the file system. A thread that holds it must not wait for a lock of a process: the
/// kernel may hold such a lock until this mount has served a WRITE, and a WRITE needs the log.
pub struct Log {
    state: Mutex<State>,
    processes: Processes,
    clock: SystemClock,
    /// The command's standard output, if lines of it can be promises.
    output: OnceLock<Arc<Output>>,
    /// Finds the callers of each call, if enabled.
    stacks: OnceLock<Stacks>,
}

pub struct State {
    out: Sink,
    /// The number of events so far.
    pub count: u64,
    pub marks: u64,
    /// The number of events of stores through mappings.
    pub stores: u64,
    /// The bytes of the events that are kept in memory, without the baseline.
    pub bytes: u64,
    /// Why recording has stopped, if it has.
    failed: Option<KcrError>,
    /// For each inode, how many times a failed fsync has dropped its pages.
    dropped: HashMap<u64, u64>,
    drops: u64,
}

/// The numbers of events in a recording.
pub struct Counts {
    pub events: u64,
    pub marks: u64,
    /// The number of events of stores through mappings.
    pub stores: u64,
}

/// Where events go.
enum Sink {
    File(Writer<Ahead>),
    /// The events are kept in memory, for a crash at any time.
    Memory(Vec<Event>),
    /// Closed: the recording could not be written, or everything in it counts as durable.
    Closed,
    /// Closed by a power failure. No state that the crash could leave has later calls.
    Cut,
}

impl State {
    /// How many times a failed fsync has dropped pages of this inode, or for `None` of any inode.
    pub fn drops(&self, ino: Option<u64>) -> u64 {
        ino.map_or(self.drops, |ino| self.dropped.get(&ino).copied().unwrap_or(0))
    }
}

impl Log {
    pub fn new(file: File) -> Result<Log, KcrError> {
        Log::on_clock(file, SystemClock::default())
    }

    /// Makes a recording whose times are those of `clock`. Recordings with one clock can be merged
    /// in order.
    pub fn on_clock(file: File, clock: SystemClock) -> Result<Log, KcrError> {
        let out = Writer::new(Ahead::new(file)?)?;
        Ok(Log { clock, ..Log::with(Sink::File(out), 0) })
    }

    /// Makes a recording in memory that starts with these events.
    pub fn in_memory(events: Vec<Event>) -> Log {
        let count = events.len() as u64;
        Log::with(Sink::Memory(events), count)
    }

    /// The same recording with times of a clock that other recordings share.
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

    /// Lets the callers of each later call be recorded.
    pub fn look_at_stacks(&self, stacks: Stacks) {
        // The recorder does this once for each command.
        assert!(self.stacks.set(stacks).is_ok(), "a log looks at stacks or does not");
    }

    /// The number of calls whose callers were searched for and not found.
    pub fn without_stack(&self) -> u64 {
        self.stacks.get().map_or(0, Stacks::missing)
    }

    /// Lets this output be read before each later call.
    pub fn listen(&self, output: Arc<Output>) {
        // The recorder does this once for each command.
        assert!(self.output.set(output).is_ok(), "a log listens once");
    }

    /// Locks the log, after recording the promises printed so far.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if let Some(output) = self.output.get() {
            output.take_in(|text| self.put(&mut state, 0, 0, 0, Call::Mark { text }));
        }
        state
    }

    /// Reads about the process of a thread, before the log is locked for its call. See
    /// [`Processes::look_at`].
    pub fn look_at(&self, tid: u32, may_wait: bool) {
        self.processes.look_at(tid, may_wait);
    }

    /// Records a call. Returns `false` if power has failed before, so that no state which the crash
    /// could leave has the call.
    pub fn append(&self, state: &mut State, tid: u32, errno: i32, call: Call) -> bool {
        let pid = match self.processes.of(tid) {
            Found::Known(pid) => pid,
            // This is the first call of the process, so the process gets an event.
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
        // A request that no thread made, such as writeback by the kernel, has no callers.
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
            // Write the event to the kernel at once: then a killed recorder loses no call that has
            // returned.
            Sink::File(out) => out.append(&event),
        };
        match put {
            Ok(()) => {
                state.count += 1;
                state.marks += u64::from(is_mark);
                state.stores += u64::from(is_store);
            }
            // Stop recording: a recording with a hole would blame the program for calls that it did
            // not omit. The end of the recording reports the error.
            Err(e) => {
                tracing::error!("the recording cannot be written: {e}");
                state.failed = Some(e);
                state.out = Sink::Closed;
            }
        }
    }

    /// Cuts the log at a power failure. Returns the events in memory. An fsync that completes later
    /// finds the log cut and fails.
    pub fn cut(&self) -> Vec<Event> {
        self.end_with(Sink::Cut)
    }

    /// Counts all events in memory as durable, and returns them. An fsync that completes later has
    /// nothing to add, and succeeds.
    pub fn settle(&self) -> Vec<Event> {
        self.end_with(Sink::Closed)
    }

    fn end_with(&self, end: Sink) -> Vec<Event> {
        match std::mem::replace(&mut self.state.lock().out, end) {
            Sink::Memory(events) => events,
            Sink::File(_) | Sink::Closed | Sink::Cut => Vec::new(),
        }
    }

    /// Shows the events in memory to `look`, which must leave them unchanged. No call is recorded
    /// meanwhile.
    pub fn look(&self, look: impl FnOnce(&mut Vec<Event>)) {
        if let Sink::Memory(events) = &mut self.state.lock().out {
            look(events);
        }
    }

    /// Changes the events in memory, because an fsync of this inode failed and dropped its pages.
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
