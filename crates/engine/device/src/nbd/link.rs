//! One connection: the requests that wait for a reply on it, and the reading of replies.
//!
//! Two threads serve a connection: one sends jobs, the other receives replies. A single thread
//! could deadlock: servers stop reading until their replies are taken, and a thread blocked in
//! sending would not take them. A caller of the synchronous interface sends its message itself and
//! waits for the receiver.
//!
//! Locks: `sending` is held while the bytes of one message are sent; `table` is a leaf. No
//! completion runs under either.

use super::stream::Stream;
use super::wire::*;
use super::work::{Coverage, Owner, Part};
use kedge_base::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Maximum number of messages without a reply on one connection.
const DEPTH: usize = 64;

pub struct Link {
    pub stream: Stream,
    sending: Mutex<()>,
    table: Mutex<Table>,
    room: Condvar,
    clock: SystemClock,
    timeout: Duration,
    /// Set when no more jobs may be sent on this connection. Changes under the lock of the job
    /// queue.
    retired: AtomicBool,
    /// Set when no message will be sent any more, and all have been answered or the connection is
    /// dead.
    ended: AtomicBool,
}

#[derive(Default)]
struct Table {
    flights: BTreeMap<u64, Flight>,
    next_cookie: u64,
    dead: bool,
}

struct Flight {
    part: Part,
    until: Duration,
    holder: Holder,
    coverage: Coverage,
    /// The first error in a structured reply whose last chunk has not arrived.
    error: Option<i32>,
}

/// Where the owner of the message is at present.
enum Holder {
    Table(Owner),
    /// With the sending thread, which needs the buffer. The value is the reply, if it arrived
    /// before the message was sent completely.
    Sender(Option<Result<(), i32>>),
    /// With the receiving thread, which fills the buffer.
    Receiver,
}

/// A complete reply.
pub struct Answer {
    pub part: Part,
    pub owner: Owner,
    pub result: Result<(), i32>,
}

/// The outcome of [`Link::send`].
pub enum Sent {
    /// The message is under way; the receiver will deliver the reply.
    Under,
    /// The reply arrived before the message was sent completely.
    Answered(Answer),
    /// The connection is dead, with the reason. Contains the owner unless [`Link::kill`] will find
    /// or has found the owner in the table.
    Failed(Option<Owner>, String),
}

impl Link {
    pub fn new(stream: Stream, timeout: Duration) -> Link {
        Link {
            stream,
            sending: Mutex::default(),
            table: Mutex::default(),
            room: Condvar::new(),
            clock: SystemClock::default(),
            timeout,
            retired: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Makes the sending thread stop.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
    }

    pub fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// Waits for the replies to all messages, or until the connection is dead, and disconnects. The
    /// caller ensures that no other message will be sent.
    pub fn end(&self) {
        let mut table = self.table.lock();
        while !table.flights.is_empty() && !table.dead {
            self.room.wait(&mut table);
        }
        drop(table);
        self.ended.store(true, Release);
        self.say_goodbye();
        self.stream.shut();
    }

    /// Returns whether the connection ended because of [`Link::end`]. If the connection was dead
    /// then, messages may have no reply.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// Waits until another message may be sent. Returns `false` if the connection is dead.
    pub fn wait_for_room(&self) -> bool {
        let mut table = self.table.lock();
        while table.flights.len() >= DEPTH && !table.dead {
            self.room.wait(&mut table);
        }
        !table.dead
    }

    /// Sends a message. Its payload, if it has one, is in `payload`, or else belongs to the owner.
    pub fn send(&self, part: Part, owner: Owner, payload: Option<&[u8]>) -> Sent {
        let mut kept = Some(owner);
        let mut table = self.table.lock();
        if table.dead {
            return Sent::Failed(kept, "the connection was given up".into());
        }
        let cookie = table.next_cookie;
        table.next_cookie += 1;
        let holder = match part.command {
            CMD_WRITE => Holder::Sender(None),
            _ => Holder::Table(kept.take().expect("just put")),
        };
        let until = self.clock.monotonic() + self.timeout;
        let flight = Flight { part, until, holder, coverage: Coverage::default(), error: None };
        table.flights.insert(cookie, flight);
        drop(table);
        let written = {
            let own = match &kept {
                Some(Owner::Job(job)) => job.payload(&part),
                _ => &[],
            };
            let head = request(part.flags, part.command, cookie, part.offset, part.len);
            let _one_at_a_time = self.sending.lock();
            self.stream.write_all(&head, payload.unwrap_or(own))
        };
        self.sent(cookie, kept, written)
    }

    /// Called after sending a message: puts the owner into the table, or returns the owner to the
    /// caller if the reply has arrived or the connection is dead.
    fn sent(&self, cookie: u64, kept: Option<Owner>, written: Result<(), String>) -> Sent {
        let Some(owner) = kept else {
            return written.map_or_else(|why| Sent::Failed(None, why), |()| Sent::Under);
        };
        let mut table = self.table.lock();
        let dead = table.dead;
        let flight = table.flights.get_mut(&cookie).expect("an entry stays while the sender has its owner");
        let early = match &flight.holder {
            Holder::Sender(early) => *early,
            _ => None,
        };
        if early.is_none() && written.is_ok() && !dead {
            flight.holder = Holder::Table(owner);
            return Sent::Under;
        }
        let part = flight.part;
        table.flights.remove(&cookie);
        self.room.notify_all();
        match (early, written) {
            (_, Err(why)) => Sent::Failed(Some(owner), why),
            (Some(result), Ok(())) => Sent::Answered(Answer { part, owner, result }),
            (None, Ok(())) => Sent::Failed(Some(owner), "the connection was given up".into()),
        }
    }

    /// Sends the disconnect request, to which the server does not reply.
    pub fn say_goodbye(&self) {
        let head = request(0, CMD_DISC, u64::MAX, 0, 0);
        if let Some(_free) = self.sending.try_lock() {
            // A server that has closed the connection needs no disconnect request.
            let _ = self.stream.write_all(&head, &[]);
        }
    }

    /// Stops the sending of messages. Returns the owners of all messages without a reply, except
    /// for those with the sending or the receiving thread, which handle these owners themselves.
    /// The receiver calls this when it ends, also after [`Link::end`].
    pub fn kill(&self) -> Vec<Owner> {
        self.stream.shut();
        let mut table = self.table.lock();
        table.dead = true;
        self.room.notify_all();
        let mut owners = Vec::new();
        let flights = std::mem::take(&mut table.flights);
        for (cookie, flight) in flights {
            match flight.holder {
                Holder::Table(owner) => owners.push(owner),
                _ => drop(table.flights.insert(cookie, flight)),
            }
        }
        owners
    }

    /// Returns whether the receiving thread has the owner of a message.
    #[cfg(test)]
    pub fn is_filling(&self) -> bool {
        self.table.lock().flights.values().any(|flight| matches!(flight.holder, Holder::Receiver))
    }

    /// Fails if a message has waited too long for its reply.
    fn overdue(&self) -> Result<(), String> {
        let now = self.clock.monotonic();
        let table = self.table.lock();
        match table.flights.values().find(|flight| flight.until <= now) {
            None => Ok(()),
            Some(late) => Err(format!(
                "the server has not answered a {} request for {} s",
                command_name(late.part.command),
                self.timeout.as_secs_f32()
            )),
        }
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), String> {
        self.stream.read_exact(bytes, || self.overdue())
    }

    /// Reads the next message of the server. Returns `None` if it was only a part of a reply.
    pub fn receive(&self, structured: bool) -> Result<Option<Answer>, String> {
        // A server that continually replies to other requests must still not forget one.
        self.overdue()?;
        let mut magic = [0; 4];
        self.fill(&mut magic)?;
        match u32::from_be_bytes(magic) {
            SIMPLE_REPLY_MAGIC => self.simple(structured),
            STRUCTURED_REPLY_MAGIC if structured => self.chunk(),
            magic => Err(format!("the server sends {magic:#010x} where a reply begins")),
        }
    }

    fn simple(&self, structured: bool) -> Result<Option<Answer>, String> {
        let mut head = [0; 12];
        self.fill(&mut head)?;
        let (error, cookie) = (u32_at(&head, 0), u64_at(&head, 4));
        let part = self.part_of(cookie)?;
        if error != 0 {
            return self.finish(cookie, Err(errno(error)));
        }
        if part.command == CMD_READ {
            if structured {
                return Err("the server replies to a read without structure, which it had promised".into());
            }
            self.fill_read(cookie, &part, 0, part.len)?;
        }
        self.finish(cookie, Ok(()))
    }

    /// Reads one chunk of a structured reply.
    fn chunk(&self) -> Result<Option<Answer>, String> {
        let mut head = [0; 16];
        self.fill(&mut head)?;
        let (flags, kind) = (u16_at(&head, 0), u16_at(&head, 2));
        let (cookie, len) = (u64_at(&head, 4), u32_at(&head, 12));
        let part = self.part_of(cookie)?;
        let is_read = part.command == CMD_READ;
        self.with(cookie, |flight| flight.coverage.count(&part))??;
        match kind {
            CHUNK_NONE if len == 0 => {
                if flags & CHUNK_DONE == 0 {
                    return Err("the server sends a chunk that means nothing".into());
                }
            }
            CHUNK_DATA if is_read && len > 8 => {
                let at = self.place(&part, len - 8)?;
                self.cover(cookie, at, len - 8)?;
                self.fill_read(cookie, &part, at, len - 8)?;
            }
            CHUNK_HOLE if is_read && len == 12 => {
                let mut place = [0; 12];
                self.fill(&mut place)?;
                let len = u32_at(&place, 8);
                let at = part.inside(u64_at(&place, 0), len)?;
                self.cover(cookie, at, len)?;
                self.with_room(cookie, &part, |room| room[at as usize..][..len as usize].fill(0))?;
            }
            kind if kind & CHUNK_ERROR != 0 => {
                let error = self.error_chunk(len)?;
                self.with(cookie, |flight| flight.error.get_or_insert(error).to_owned())?;
            }
            _ => return Err(format!("the server sends a chunk of kind {kind} with {len} bytes")),
        }
        if flags & CHUNK_DONE == 0 {
            return Ok(None);
        }
        let (error, whole) = self.with(cookie, |f| (f.error, !is_read || f.coverage.is_whole(&part)))?;
        match error {
            Some(errno) => self.finish(cookie, Err(errno)),
            None if whole => self.finish(cookie, Ok(())),
            None => Err("the server leaves out bytes of a read".into()),
        }
    }

    fn error_chunk(&self, len: u32) -> Result<i32, String> {
        if !(6..=TEXT_MAX as u32 + 64).contains(&len) {
            return Err(format!("the server sends an error of {len} bytes"));
        }
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        let text_len = usize::from(u16_at(&bytes, 4)).min(bytes.len() - 6);
        if text_len > 0 {
            tracing::warn!("the NBD server says: {}", text(&bytes[6..6 + text_len]));
        }
        Ok(errno(u32_at(&bytes, 0)))
    }

    /// Reads the position of a piece of data. Returns its offset in the part.
    fn place(&self, part: &Part, len: u32) -> Result<u32, String> {
        let mut offset = [0; 8];
        self.fill(&mut offset)?;
        part.inside(u64::from_be_bytes(offset), len)
    }

    fn cover(&self, cookie: u64, at: u32, len: u32) -> Result<(), String> {
        self.with(cookie, |flight| flight.coverage.add(at, len))?
    }

    fn part_of(&self, cookie: u64) -> Result<Part, String> {
        self.with(cookie, |flight| flight.part)
    }

    fn with<T>(&self, cookie: u64, f: impl FnOnce(&mut Flight) -> T) -> Result<T, String> {
        let mut table = self.table.lock();
        let flight = table.flights.get_mut(&cookie);
        flight.map(f).ok_or_else(|| "the server replies to a request that was not sent".to_owned())
    }

    fn fill_read(&self, cookie: u64, part: &Part, at: u32, len: u32) -> Result<(), String> {
        self.with_room(cookie, part, |room| self.fill(&mut room[at as usize..][..len as usize]))?
    }

    /// Runs `f` on the bytes of the owner's buffer for this part. Takes the owner out of the table
    /// during `f`, because reading may take long.
    fn with_room<T>(&self, cookie: u64, part: &Part, f: impl FnOnce(&mut [u8]) -> T) -> Result<T, String> {
        let taken = self.with(cookie, |flight| std::mem::replace(&mut flight.holder, Holder::Receiver))?;
        let Holder::Table(owner) = taken else {
            unreachable!("a read's owner is in the table between chunks")
        };
        let mut guard = Borrowed { link: self, cookie, owner: Some(owner) };
        Ok(f(guard.owner.as_mut().expect("until the guard goes").room(part)))
    }

    /// Completes a reply and removes its entry from the table. Returns `None` if the sending thread
    /// still has the owner; that thread then finds the reply in the entry.
    fn finish(&self, cookie: u64, result: Result<(), i32>) -> Result<Option<Answer>, String> {
        let mut table = self.table.lock();
        let Some(flight) = table.flights.get_mut(&cookie) else {
            return Err("the connection was given up".into());
        };
        if let Holder::Sender(early) = &mut flight.holder {
            // The reply counts only once the message has been sent completely: the sender may be
            // about to record that, and a server may refuse a write before it has read the whole
            // write.
            return match early.replace(result) {
                None => Ok(None),
                Some(_) => Err("the server replies to a request twice".into()),
            };
        }
        let flight = table.flights.remove(&cookie).expect("just seen");
        self.room.notify_all();
        let Holder::Table(owner) = flight.holder else { unreachable!("the receiver gives owners back") };
        Ok(Some(Answer { part: flight.part, owner, result }))
    }
}

/// Puts the owner back into the table when dropped, even after a failed read, so that
/// [`Link::kill`] finds the owner there.
struct Borrowed<'a> {
    link: &'a Link,
    cookie: u64,
    owner: Option<Owner>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let owner = self.owner.take().expect("taken once");
        let mut table = self.link.table.lock();
        let flight = table.flights.get_mut(&self.cookie);
        flight.expect("an entry stays while the receiver has its owner").holder = Holder::Table(owner);
    }
}

fn command_name(command: u16) -> &'static str {
    match command {
        CMD_READ => "read",
        CMD_WRITE => "write",
        CMD_FLUSH => "flush",
        CMD_TRIM => "trim",
        _ => "zeroing",
    }
}
