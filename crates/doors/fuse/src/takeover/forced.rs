//! Changes that the journal does not cover. They too are made exactly once.
//!
//! Before and after such a change everything is made durable, and the change is a single record or
//! a single checkpoint. So the next server finds it made completely or not at all, and redoes no
//! other change after it that had a reply. The request itself is resent.
//! - Flags, limits and the size of the image are set to values that do not depend on the previous
//!   state. Setting them twice makes no difference.
//! - Other changes give a name to an inode, or remove a name. The server stores what the name
//!   refers to before ([`crate::keep::forced`]), and the next server compares that with what the
//!   name refers to now. No other request changes the name in between: the kernel holds the locks
//!   of directories in rename(2) and rmdir(2). Of two concurrent forks with the same name, the
//!   resent request that comes first claims the tree.

use crate::abi::{self, UNIQUE_RESEND, ioctl, op};
use crate::args::Args;
use crate::keep::Kept;
use crate::keep::forced::{Forced, Name, REFUSED, Slot};
use crate::keep::steps::{self, Broken, Step};
use crate::ops::Ops;
use crate::server::Server;
use crate::settle::{SettledJob, Then};
use crate::transport::{Reply, Request};
use crate::trees::TreeCall;
use kedge_base::{Ino, IoBuf};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The evidence that a change is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    /// The name refers to a tree that did not exist before.
    New,
    /// The name no longer refers to the same inode.
    Gone,
    /// The name refers to an inode that had another name before.
    Moved,
}

/// The name at which a change is visible.
struct Seen {
    sign: Sign,
    name: Name,
    /// The inode that the change moves; 0 if it moves none.
    subject: u64,
}

impl Seen {
    /// `None` if the change may be made twice.
    fn of(request: &Request<'_>, ops: &impl Ops) -> Option<Seen> {
        let dir = Ino(request.header.nodeid);
        let mut args = Args::new(request.body);
        let (sign, name, subject) = match request.header.opcode {
            op::IOCTL => {
                let cmd = args.take::<abi::IoctlIn>().ok()?.cmd;
                let asked = TreeCall::is_asked(cmd).then(|| args.take::<abi::TreeIn>().ok())??;
                let name = (dir, asked.name_head.as_bytes().get(..asked.name_len as usize)?.to_vec());
                match cmd {
                    ioctl::DELETE_TREE => (Sign::Gone, name, 0),
                    ioctl::COMMIT_TREE => (Sign::Moved, name, asked.source),
                    _ => (Sign::New, name, 0),
                }
            }
            op::RMDIR => (Sign::Gone, (dir, args.name().ok()?.to_vec()), 0),
            op::RENAME | op::RENAME2 => {
                let new_dir = match request.header.opcode {
                    op::RENAME => args.take::<abi::RenameIn>().ok()?.newdir,
                    _ => args.take::<abi::Rename2In>().ok()?.newdir,
                };
                let (name, new_name) = (args.name().ok()?, args.name().ok()?);
                let subject = meaning(ops, &(dir, name.to_vec()));
                (Sign::Moved, (Ino(new_dir), new_name.to_vec()), subject)
            }
            _ => return None,
        };
        Some(Seen { sign, name, subject })
    }

    /// The inode to which the name refers now; 0 if there is none of the kind that the change
    /// makes.
    fn now(&self, ops: &impl Ops) -> u64 {
        match self.sign {
            // Only trees count, because another request may have made a directory of this name.
            Sign::New => ops.tree_named(self.name.0, &self.name.1).map_or(0, |root| root.0),
            _ => meaning(ops, &self.name),
        }
    }

    fn is_made(&self, forced: &Forced, now: u64) -> bool {
        match self.sign {
            Sign::New => now != 0 && now != forced.before,
            Sign::Gone => forced.before != 0 && now != forced.before,
            Sign::Moved => forced.subject != 0 && now == forced.subject && now != forced.before,
        }
    }
}

fn meaning(ops: &impl Ops, (dir, name): &Name) -> u64 {
    ops.lookup(*dir, name).map_or(0, |attr| attr.ino.0)
}

/// A change whose reply has not been sent.
struct UnderWay {
    kept: Arc<Kept>,
    slot: Slot,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // After a panic the next server needs the slot.
        if !std::thread::panicking() {
            self.kept.forced.lock().end(&self.kept.area, self.slot);
        }
    }
}

impl<O: Ops> Server<O> {
    /// Serves a change, and makes it durable before its reply.
    pub(super) fn force(&self, kept: &Arc<Kept>, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        // Changes in the journal must not be redone after this change.
        if let Err(errno) = kept.journal.barrier() {
            return reply.err(errno);
        }
        let seen = Seen::of(request, &*self.ops);
        let under_way = match &seen {
            None => None,
            Some(seen) => {
                let unique = request.header.unique & !UNIQUE_RESEND;
                let (before, subject) = (seen.now(&*self.ops), seen.subject);
                let forced = Forced { unique, before, subject, made: 0 };
                let slot = kept.forced.lock().begin(&kept.area, seen.name.clone(), forced);
                let Some(slot) = slot else { return reply.err(libc::EBUSY) };
                Some(UnderWay { kept: kept.clone(), slot })
            }
        };
        let opcode = request.header.opcode;
        steps::at(Step::Begun, opcode);
        let (noted, ops) = (kept.clone(), self.ops.clone());
        let shown = seen.zip(under_way.as_ref().map(|under_way| under_way.slot));
        let durable = move |error: i32, _: &[&[u8]]| {
            steps::at(Step::Made, opcode);
            // The sync is necessary even if the journal is empty: the record of a flag or whiteout
            // is not durable yet.
            let durable = || ops.sync().map_err(|e| e.errno()).and_then(|()| noted.journal.barrier());
            let error = if error == 0 { durable().map_or_else(|errno| -errno, |()| 0) } else { error };
            if let Some((seen, slot)) = shown {
                let made = if error == 0 { seen.now(&*ops) } else { REFUSED };
                noted.forced.lock().made(&noted.area, slot, made);
            }
            steps::at(Step::Finished, opcode);
            error
        };
        let owed = (under_way, kept.owe(None));
        self.dispatch(request, reply.after(Box::new(durable)).holding(Box::new(owed)), out);
    }

    /// If a dead server has made the change, replies to the request and returns `None`. Otherwise
    /// returns the reply, and the caller serves the request.
    pub(super) fn forced_again(
        &self,
        kept: &Arc<Kept>,
        request: &Request<'_>,
        reply: Reply,
    ) -> Option<Reply> {
        let unique = request.header.unique & !UNIQUE_RESEND;
        let mut slots = kept.forced.lock();
        let Some((slot, forced)) = slots.take(unique) else { return Some(reply) };
        let seen = Seen::of(request, &*self.ops);
        let now = seen.as_ref().map_or(0, |seen| seen.now(&*self.ops));
        let is_made = match (&seen, forced.made) {
            (None, _) | (_, REFUSED) => false,
            (Some(seen), 0) => {
                seen.is_made(&forced, now) && !(seen.sign == Sign::New && slots.is_claimed(now))
            }
            (Some(_), _) => true,
        };
        if !is_made || steps::is_broken(Broken::ForcedRepeated) {
            slots.end(&kept.area, slot);
            return Some(reply);
        }
        slots.made(&kept.area, slot, now);
        drop(slots);
        let reply = reply.holding(Box::new(UnderWay { kept: kept.clone(), slot }));
        let mut args = Args::new(request.body);
        let asked = (request.header.opcode == op::IOCTL).then(|| args.take::<abi::IoctlIn>());
        match asked.and_then(Result::ok).map(|asked| TreeCall::parse(asked.cmd, &request.header, &mut args)) {
            None => reply.ok(&[]),
            Some(Err(e)) => reply.err(e.0),
            Some(Ok(call)) => {
                let then = Then::Tree(call.made());
                self.settle(SettledJob { reply, ino: Ino(request.header.nodeid), from: 0, then });
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "forced_tests.rs"]
mod tests;
