//! Programs and libraries: their unwind tables, and the names and lines of their functions.
//!
//! Files are read whole, not mapped: SIGBUS would kill this process if a mapped file were
//! truncated.

use super::go::GoTable;
use super::unwind::{Bytes, Tables};
use addr2line::Context;
use gimli::LittleEndian;
use object::elf::R_X86_64_RELATIVE;
use object::{Architecture, Object, ObjectSection, ObjectSegment, ObjectSymbol, RelocationFlags, SymbolKind};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The largest file in bytes that is read.
const SIZE_MAX: u64 = 1 << 30;
/// The most files that are kept in memory. At the limit all are dropped.
const KEPT_MAX: usize = 512;

/// The bytes of the longest call instruction, without prefixes.
const CALL_MAX: usize = 7;

/// A file by its device, inode, and time of the last change (seconds, nanoseconds).
type Identity = (u64, u64, i64, i64);

/// All files read so far.
pub(super) struct Binaries {
    /// The mount, below which no file is read.
    mount: PathBuf,
    known: HashMap<Identity, Option<Arc<Binary>>>,
}

impl Binaries {
    pub fn new(mount: PathBuf) -> Binaries {
        Binaries { mount, known: HashMap::new() }
    }

    /// The file that a process has mapped. `None` if the path is no regular file, or if the file
    /// was deleted or cannot be read.
    pub fn get(&mut self, pid: u32, path: &str) -> Option<Arc<Binary>> {
        if !path.starts_with('/') || PathBuf::from(path).starts_with(&self.mount) {
            return None;
        }
        // Open the path through the root directory of that process.
        let file = File::open(format!("/proc/{pid}/root{path}")).ok()?;
        let found = file.metadata().ok()?;
        let identity = (found.dev(), found.ino(), found.mtime(), found.mtime_nsec());
        if self.known.len() >= KEPT_MAX {
            self.known.clear();
        }
        let read = || {
            let read = Binary::read(file);
            read.map(Arc::new).map_err(|e| tracing::debug!("{path} has no names: {e}")).ok()
        };
        self.known.entry(identity).or_insert_with(read).clone()
    }
}

struct Symbol {
    range: Range<u64>,
    name: String,
}

/// A segment with code.
struct Load {
    /// The offset of the segment in the file.
    offset: u64,
    address: u64,
    bytes: Vec<u8>,
}

/// A call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A direct call of the function at this address of the file.
    To(u64),
    /// A call through a pointer that is at this address of the file.
    By(u64),
    /// A call through a register, or through memory whose contents only the running program knows.
    Indirect,
}

pub(super) struct Binary {
    loads: Vec<Load>,
    /// For each address that holds a pointer to a function of this file, the address of that
    /// function.
    pointers: HashMap<u64, u64>,
    /// The unwind tables of `.eh_frame`.
    pub tables: Option<Tables>,
    /// Go's own table.
    pub go: Option<GoTable>,
    lines: Option<Context<Bytes>>,
    symbols: Vec<Symbol>,
}

impl Binary {
    fn read(file: File) -> io::Result<Binary> {
        let mut bytes = Vec::new();
        file.take(SIZE_MAX).read_to_end(&mut bytes)?;
        Binary::parse(&bytes)
    }

    pub(super) fn parse(bytes: &[u8]) -> io::Result<Binary> {
        let object = object::File::parse(bytes).map_err(io::Error::other)?;
        if object.architecture() != Architecture::X86_64 {
            return Err(io::Error::other("it is not for x86-64"));
        }
        let load = |s: object::Segment<'_, '_>| {
            Some(Load { offset: s.file_range().0, address: s.address(), bytes: s.data().ok()?.to_vec() })
        };
        let tables = object.section_by_name(".eh_frame").and_then(|s| {
            Some(Tables::read(Bytes::new(Arc::from(s.data().ok()?), LittleEndian), s.address()))
        });
        Ok(Binary {
            loads: object.segments().filter(|s| s.permissions().executable()).filter_map(load).collect(),
            pointers: tables.as_ref().map(|t| pointers(&object, t)).unwrap_or_default(),
            tables,
            go: go(&object),
            lines: lines(&object),
            symbols: symbols(&object),
        })
    }

    /// The difference between addresses in memory and in the file, if the page at `offset` of the
    /// file is mapped at `start`. `None` if no code is there.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        // A mapping begins at a page boundary, but a segment need not: the page may begin with the
        // end of another segment that has no code.
        let is_there = |load: &&Load| {
            let end = load.offset.saturating_add(load.bytes.len() as u64);
            offset < end && offset >= load.offset.saturating_sub(load.offset % 4096)
        };
        let load = self.loads.iter().find(is_there)?;
        Some(start.wrapping_sub(offset).wrapping_sub(load.address.wrapping_sub(load.offset)))
    }

    /// The call instruction that ends at an address.
    pub fn call_before(&self, address: u64) -> Option<Call> {
        let before = |load: &Load| {
            let len = usize::try_from(address.checked_sub(load.address)?).ok()?;
            load.bytes.get(len.checked_sub(CALL_MAX)?..len)?.try_into().ok()
        };
        let call = call_at_end(self.loads.iter().find_map(before)?, address)?;
        Some(match call {
            Call::By(place) => self.pointers.get(&place).map_or(Call::Indirect, |to| Call::To(*to)),
            call => call,
        })
    }

    /// The name and the line of each function at an address of the file, innermost first.
    pub fn functions(&self, address: u64) -> Vec<(Option<String>, Option<String>)> {
        let mut found = self.inlined(address);
        let go = || self.go.as_ref().and_then(|go| go.name(address));
        if found.is_empty()
            && let Some((name, line)) = go()
        {
            return vec![(Some(name), line)];
        }
        let symbol = self.symbol(address);
        match found.last_mut() {
            Some(outer) => outer.0 = outer.0.take().or(symbol),
            None => found.extend(symbol.map(|name| (Some(name), None))),
        }
        found
    }

    fn inlined(&self, address: u64) -> Vec<(Option<String>, Option<String>)> {
        let mut found = Vec::new();
        let Some(lines) = &self.lines else { return found };
        let Ok(mut frames) = lines.find_frames(address).skip_all_loads() else { return found };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.and_then(|f| f.demangle().ok().map(|name| name.into_owned()));
            let line = frame.location.and_then(|l| {
                let file = l.file?;
                Some(l.line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}")))
            });
            found.push((name, line));
        }
        found
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let behind = self.symbols.partition_point(|s| s.range.start <= address);
        let symbol = self.symbols[..behind].last().filter(|s| s.range.contains(&address))?;
        Some(addr2line::demangle_auto(symbol.name.as_str().into(), None).into_owned())
    }
}

/// Finds pointers to functions in the relocations of position-independent programs.
fn pointers(object: &object::File<'_>, tables: &Tables) -> HashMap<u64, u64> {
    let mut pointers = HashMap::new();
    for (place, relocation) in object.dynamic_relocations().into_iter().flatten() {
        let RelocationFlags::Elf { r_type: R_X86_64_RELATIVE } = relocation.flags() else { continue };
        let to = relocation.addend().cast_unsigned();
        if tables.start(to) == Some(to) {
            pointers.insert(place, to);
        }
    }
    pointers
}

/// The call instruction at the end of these bytes: `E8` with a distance, or `FF /2` with a register
/// or memory operand.
fn call_at_end(bytes: [u8; CALL_MAX], end: u64) -> Option<Call> {
    let is_indirect = |len: usize| {
        let [0xff, mode, then @ ..] = &bytes[CALL_MAX - len..] else { return false };
        let base = if mode & 7 == 4 { 1 } else { 0 };
        let operand = match (mode >> 6, mode & 7) {
            (0, 5) => 4,
            (0, 4) if then.first().is_some_and(|sib| sib & 7 == 5) => 5,
            (0, _) => base,
            (1, _) => base + 1,
            (2, _) => base + 4,
            _ => 0,
        };
        mode >> 3 & 7 == 2 && then.len() == operand
    };
    // The distance counts from the end of the instruction.
    let at = |distance| end.wrapping_add_signed(i32::from_le_bytes(distance).into());
    if let [_, 0xff, 0x15, distance @ ..] = bytes {
        return Some(Call::By(at(distance)));
    }
    if (2..=CALL_MAX).any(is_indirect) {
        return Some(Call::Indirect);
    }
    match bytes {
        [_, _, 0xe8, distance @ ..] => Some(Call::To(at(distance))),
        _ => None,
    }
}

/// Go's table, with the address from which its offsets count.
fn go(object: &object::File<'_>) -> Option<GoTable> {
    let section = object.sections().find(|s| s.name().is_ok_and(|name| name.ends_with(".gopclntab")))?;
    // A program linked by Go's linker has no code before Go's functions.
    let symbol = object.symbols().find(|s| s.name() == Ok("runtime.text")).map(|s| s.address());
    let text = symbol.or_else(|| object.section_by_name(".text").map(|s| s.address()))?;
    GoTable::read(section.data().ok()?, text)
}

/// The debug information, if the file itself contains it uncompressed.
fn lines(object: &object::File<'_>) -> Option<Context<Bytes>> {
    let load = |id: gimli::SectionId| -> Result<Bytes, gimli::Error> {
        let data = object.section_by_name(id.name()).and_then(|s| s.uncompressed_data().ok());
        Ok(Bytes::new(Arc::from(data.as_deref().unwrap_or_default()), LittleEndian))
    };
    Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

fn symbols(object: &object::File<'_>) -> Vec<Symbol> {
    let all = object.symbols().chain(object.dynamic_symbols());
    let code = all.filter(|s| s.kind() == SymbolKind::Text && s.size() > 0 && s.is_definition());
    let mut symbols: Vec<Symbol> = code
        .filter_map(|s| {
            let range = s.address()..s.address().checked_add(s.size())?;
            Some(Symbol { range, name: s.name().ok()?.to_owned() })
        })
        .collect();
    symbols.sort_by_key(|s| s.range.start);
    symbols
}

#[cfg(test)]
#[path = "binary_tests.rs"]
mod tests;
