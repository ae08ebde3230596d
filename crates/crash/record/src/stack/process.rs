//! The stack and mappings of a waiting process, and its callers.

use super::Frame;
use super::binary::{Binaries, Binary, Call};
use super::unwind::{Registers, Step};
use crate::maps::{self, Mapping, hex, mappings};
use gimli::X86_64;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The most bytes of the stack that are read, from the stack pointer on.
const STACK_MAX: u64 = 512 << 10;
/// The greatest distance from the stack pointer at which a frame pointer is searched for.
const GUESS_MAX: u64 = 64 << 10;
/// The most candidates for a frame pointer that are tried.
const GUESSES_MAX: usize = 64;
/// The note before callers that were found with a guessed frame pointer.
const GUESSED: &str = "(the callers below are a guess)";
/// The note after the last known caller if there are further ones.
const UNKNOWN: &str = "(callers unknown from here)";

/// The registers and the stack of a waiting thread.
pub(super) struct Snapshot {
    pc: u64,
    sp: u64,
    pub maps: String,
    pub pid: u32,
    stack: Vec<u8>,
}

fn unreadable(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Snapshot {
    pub fn take(pid: u32, tid: u32) -> io::Result<Snapshot> {
        let call = fs::read_to_string(format!("/proc/{tid}/syscall"))?;
        // The line has the number of the call, six arguments, the stack pointer and the program
        // counter. For a running thread, whose call has returned, it has none of these.
        let words: Vec<&str> = call.split_whitespace().collect();
        let [_, .., sp, pc] = words[..] else { return Err(unreadable("it does not wait")) };
        let (sp, pc) = hex(sp).zip(hex(pc)).ok_or_else(|| unreadable("registers"))?;
        let maps = maps::read(pid)?;
        let end = mappings(&maps).find(|m| m.range.contains(&sp)).map_or(sp, |m| m.range.end);
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut stack = vec![0; usize::try_from((end - sp).min(STACK_MAX)).unwrap_or(0)];
        memory.read_exact_at(&mut stack, sp)?;
        Ok(Snapshot { pc, sp, maps, pid, stack })
    }

    fn word(&self, at: u64) -> Option<u64> {
        let from = usize::try_from(at.checked_sub(self.sp)?).ok()?;
        let bytes = self.stack.get(from..from.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn end(&self) -> u64 {
        self.sp + self.stack.len() as u64
    }
}

/// A range of code in the memory of a process.
struct Code {
    range: Range<u64>,
    /// The number that is added to an address in the file to get the address in memory.
    bias: u64,
    name: String,
    binary: Option<Arc<Binary>>,
}

/// A function on the stack.
#[derive(Clone, Copy)]
struct Place {
    /// An address inside the call instruction, or inside the instruction that waits.
    at: u64,
    registers: Registers,
}

/// Why the search for callers ended.
enum End {
    /// The outermost function was reached, or enough frames were found.
    Top,
    /// The frame pointer of this function is unknown.
    NeedsFrame(Place),
    Unknown,
}

/// The result of one step by Go's table.
enum GoStep {
    Caller(Place),
    /// A goroutine begins here.
    Top,
}

/// How certain it is that a return address belongs to a call of the function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// The return address follows a direct call of this function.
    Sure,
    /// The return address follows an indirect call, which may have called this function.
    May,
}

/// The mappings and code of a process, which are valid as long as its mappings do not change.
pub(super) struct Process {
    maps: String,
    codes: Vec<Code>,
}

impl Process {
    pub fn new(snapshot: &Snapshot, binaries: &mut Binaries) -> Process {
        let code = |mapping: Mapping<'_>| {
            let found = binaries.get(snapshot.pid, mapping.path);
            let found = found.and_then(|b| Some((b.bias(mapping.range.start, mapping.offset)?, b)));
            let name = PathBuf::from(mapping.path).file_name().map(|n| n.to_string_lossy().into_owned());
            Code {
                range: mapping.range,
                bias: found.as_ref().map_or(0, |(bias, _)| *bias),
                name: name.unwrap_or_else(|| "memory without a file".to_owned()),
                binary: found.map(|(_, binary)| binary),
            }
        };
        let codes = mappings(&snapshot.maps).filter(|m| m.is_code).map(code).collect();
        Process { maps: snapshot.maps.clone(), codes }
    }

    /// Whether the process still has the same mappings.
    pub fn is_of(&self, snapshot: &Snapshot) -> bool {
        self.maps == snapshot.maps
    }

    fn code(&self, address: u64) -> Option<&Code> {
        self.codes.iter().find(|c| c.range.contains(&address))
    }

    /// The callers, innermost first. A note comes before callers that are a guess.
    pub fn frames(&self, snapshot: &Snapshot, max: usize) -> Vec<Frame> {
        let start = Place { at: snapshot.pc, registers: Registers::new(snapshot.pc, snapshot.sp) };
        let (places, end) = self.follow(snapshot, start, max);
        let mut frames: Vec<Frame> = places.iter().flat_map(|at| self.named(*at)).collect();
        let end = match end {
            End::NeedsFrame(stuck) => match self.guess(snapshot, stuck, max.saturating_sub(places.len())) {
                Some((sign, places, end)) => {
                    frames.extend((sign == Sign::May).then(|| note(GUESSED)));
                    frames.extend(places.iter().flat_map(|at| self.named(*at)));
                    end
                }
                None => End::Unknown,
            },
            end => end,
        };
        frames.truncate(max);
        frames.extend((!frames.is_empty() && !matches!(end, End::Top)).then(|| note(UNKNOWN)));
        frames
    }

    /// The addresses of a function and of its callers, as far as the tables and known registers
    /// lead. A return address that does not follow a call instruction ends the search.
    fn follow(&self, snapshot: &Snapshot, start: Place, max: usize) -> (Vec<u64>, End) {
        let mut places = Vec::new();
        let mut place = start;
        while places.len() < max {
            let Some(code) = self.code(place.at) else { return (places, End::Unknown) };
            places.push(place.at);
            match self.go_caller(snapshot, &place) {
                Some(GoStep::Caller(caller)) => {
                    place = caller;
                    continue;
                }
                Some(GoStep::Top) => return (places, End::Top),
                None => {}
            }
            let tables = code.binary.as_ref().and_then(|b| b.tables.as_ref());
            let Some(tables) = tables else { return (places, End::Unknown) };
            let at = place.at.wrapping_sub(code.bias);
            match tables.caller(at, &place.registers, &|at| snapshot.word(at)) {
                Step::Caller(registers) => {
                    let back = registers.get(X86_64::RA).unwrap_or(0);
                    if self.call_before(back).is_none() {
                        return (places, End::Unknown);
                    }
                    place = Place { at: back - 1, registers };
                }
                Step::Top => return (places, End::Top),
                Step::NeedsFrame => return (places, End::NeedsFrame(place)),
                Step::Unknown => return (places, End::Unknown),
            }
        }
        (places, End::Top)
    }

    /// The caller of a function that Go's table knows.
    fn go_caller(&self, snapshot: &Snapshot, place: &Place) -> Option<GoStep> {
        let code = self.code(place.at)?;
        let go = code.binary.as_ref()?.go.as_ref()?;
        let at = place.at.wrapping_sub(code.bias);
        let frame = go.frame(at)?;
        if go.is_outermost(at) {
            return Some(GoStep::Top);
        }
        let slot = place.registers.get(X86_64::RSP)?.checked_add(frame)?;
        let back = snapshot.word(slot)?;
        // A goroutine's first function has the return address of `goexit`, although nothing called
        // it.
        if go.is_outermost(back.wrapping_sub(code.bias)) {
            return Some(GoStep::Top);
        }
        self.call_before(back)?;
        Some(GoStep::Caller(Place { at: back - 1, registers: Registers::new(back, slot + 8) }))
    }

    /// The call instruction before a return address, and the code that contains it.
    fn call_before(&self, back: u64) -> Option<(&Code, Call)> {
        let code = self.code(back.checked_sub(1)?)?;
        Some((code, code.binary.as_ref()?.call_before(back.wrapping_sub(code.bias))?))
    }

    /// The callers of a function whose frame pointer is unknown. If exactly one slot of the stack
    /// proves a call of the function, they are found from that slot, else from the nearest slot
    /// that may be one.
    fn guess(&self, snapshot: &Snapshot, stuck: Place, max: usize) -> Option<(Sign, Vec<u64>, End)> {
        let code = self.code(stuck.at)?;
        let start = code.binary.as_ref()?.tables.as_ref()?.start(stuck.at.wrapping_sub(code.bias))?;
        let start = start.wrapping_add(code.bias);
        let from = stuck.registers.get(X86_64::RSP)?.next_multiple_of(8);
        let places = (from..snapshot.end().min(from.saturating_add(GUESS_MAX))).step_by(8);
        let mut found = Vec::new();
        for at in places {
            let (Some(saved), Some(back)) = (snapshot.word(at), snapshot.word(at + 8)) else { break };
            let Some(sign) = self.sign(back, start) else { continue };
            // The outermost function has no frame pointer to save, and a caller that does not use
            // one may have any value in the register.
            let is_saved = saved <= 1 || (saved > at && saved < snapshot.end());
            if sign == Sign::May && !is_saved {
                continue;
            }
            let mut registers = stuck.registers;
            registers.set(X86_64::RBP, Some(at));
            let place = Place { at: stuck.at, registers };
            let (places, end) = self.follow(snapshot, place, max.saturating_add(1));
            // The first address is that of the function itself.
            if places.len() > 1 {
                found.push((sign, places[1..].to_vec(), end));
            }
            if found.len() >= GUESSES_MAX {
                break;
            }
        }
        let sure: Vec<usize> = (0..found.len()).filter(|n| found[*n].0 == Sign::Sure).collect();
        match sure[..] {
            [] => found.into_iter().find(|(_, _, end)| matches!(end, End::Top)),
            [one] => Some(found.swap_remove(one)),
            // Either the function is recursive, or an earlier call has left its return address on
            // the stack.
            [first, ..] => Some(found.swap_remove(first)).map(|(_, places, end)| (Sign::May, places, end)),
        }
    }

    /// Whether the call before a return address may have called the function that begins at
    /// `start`.
    fn sign(&self, back: u64, start: u64) -> Option<Sign> {
        match self.call_before(back)? {
            (code, Call::To(to)) if to.wrapping_add(code.bias) == start => Some(Sign::Sure),
            // A direct call of another function is no call of this one, unless its target is a stub
            // that jumps through a pointer.
            (code, Call::To(to)) => {
                let is_function = code.binary.as_ref()?.tables.as_ref()?.start(to) == Some(to);
                (!is_function).then_some(Sign::May)
            }
            (_, Call::By(_) | Call::Indirect) => Some(Sign::May),
        }
    }

    /// The functions at an address. There are several if the compiler inlined one into another.
    fn named(&self, address: u64) -> Vec<Frame> {
        let Some(code) = self.code(address) else { return Vec::new() };
        let place = address.wrapping_sub(code.bias);
        let found = code.binary.as_ref().map(|b| b.functions(place)).unwrap_or_default();
        let unknown = format!("{}+{place:#x}", code.name);
        let is_library = ["libc.so", "libc-", "ld-linux", "libpthread", "ld-musl", "[vdso]"]
            .iter()
            .any(|start| code.name.starts_with(start));
        let is_go = code.binary.as_ref().is_some_and(|b| b.go.is_some());
        if found.is_empty() {
            return vec![Frame { name: None, place: unknown, is_library }];
        }
        let frame = |(name, line): (Option<String>, Option<String>)| {
            // Paths of Rust's own library have the form `/rustc/`, the commit, and the file.
            let inside = line.as_ref().and_then(|l| l.strip_prefix("/rustc/")?.split_once('/'));
            match inside {
                Some((_, file)) => Frame { name, place: file.to_owned(), is_library: true },
                None => {
                    let is_library = is_library || (is_go && name.as_deref().is_some_and(is_of_go));
                    Frame { name, place: line.unwrap_or_else(|| unknown.clone()), is_library }
                }
            }
        };
        found.into_iter().map(frame).collect()
    }
}

/// Whether a function belongs to the packages of Go's library that make system calls.
fn is_of_go(name: &str) -> bool {
    let packages = ["internal/", "syscall.", "runtime.", "runtime/", "os.", "io.", "bufio."];
    packages.iter().any(|package| name.starts_with(package))
}

/// A note between the callers.
fn note(text: &str) -> Frame {
    Frame { name: None, place: text.to_owned(), is_library: false }
}
