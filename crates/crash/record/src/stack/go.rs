//! Go's own table of functions (`.gopclntab`), by which Go's runtime unwinds. Stripped programs
//! have it too, while `.eh_frame` has no entries for Go's functions.
//!
//! The layout is that of Go 1.18 and later on 64-bit machines: `pcHeader` and `_func` of
//! `runtime/symtab.go` and `runtime/runtime2.go`. Other layouts and damaged tables give no result.
//! All numbers are little-endian.

use std::ops::Range;

/// The magic numbers of Go 1.18 and 1.19, and of Go 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// The functions at which each stack of Go begins.
const OUTERMOST: [&str; 4] = ["runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.mcall"];
/// The most bytes of a name that are read.
const NAME_MAX: usize = 4096;
/// The most steps in one table of values, because a damaged table may be endless.
const STEPS_MAX: usize = 1 << 20;

pub(super) struct GoTable {
    bytes: Vec<u8>,
    /// The address of the first function, from which offsets count.
    text: u64,
    /// The length in bytes by which code addresses count.
    quantum: u64,
    functions: usize,
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    /// The offset of the table of functions, from which the offsets of descriptions count.
    table: usize,
}

/// A function of the table.
struct Function {
    range: Range<u64>,
    /// The offset of the function's description.
    at: usize,
}

impl GoTable {
    /// Reads the table. `text` is the address that the runtime calls `runtime.text`.
    pub fn read(bytes: &[u8], text: u64) -> Option<GoTable> {
        let table = GoTable {
            bytes: bytes.to_vec(),
            text,
            quantum: u64::from(*bytes.get(6)?),
            functions: word(bytes, 8)?,
            names: word(bytes, 32)?,
            units: word(bytes, 40)?,
            files: word(bytes, 48)?,
            values: word(bytes, 56)?,
            table: word(bytes, 64)?,
        };
        let is_known = MAGICS.contains(&half(bytes, 0)?) && bytes.get(7) == Some(&8);
        (is_known && table.quantum > 0).then_some(table)
    }

    /// The offset of function number `number` from the first function.
    fn entry(&self, number: usize) -> Option<u64> {
        half(&self.bytes, self.table.checked_add(number.checked_mul(8)?)?).map(u64::from)
    }

    fn find(&self, address: u64) -> Option<Function> {
        let offset = address.checked_sub(self.text)?;
        // Entry number `functions` is the end of the last function.
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle)? <= offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let number = low.checked_sub(1)?;
        let address_of = |number| self.text.checked_add(self.entry(number)?);
        let range = address_of(number)?..address_of(number + 1)?;
        let at = half(&self.bytes, self.table + number * 8 + 4)? as usize;
        let at = self.table.checked_add(at)?;
        range.contains(&address).then_some(Function { range, at })
    }

    /// A field of a function's description.
    fn field(&self, function: &Function, offset: usize) -> Option<usize> {
        half(&self.bytes, function.at.checked_add(offset)?).map(|field| field as usize)
    }

    /// The value at an address in a table that has a value for each instruction.
    fn value(&self, function: &Function, table: usize, address: u64) -> Option<i64> {
        let mut bytes = self.bytes.get(self.values.checked_add(table)?..)?.iter();
        let (mut value, mut pc) = (-1i64, function.range.start);
        for step in 0..STEPS_MAX {
            let change = varint(&mut bytes)?;
            if change == 0 && step > 0 {
                return None;
            }
            let change = i64::from(change >> 1) ^ -i64::from(change & 1);
            value = value.checked_add(change)?;
            pc = pc.checked_add(u64::from(varint(&mut bytes)?).checked_mul(self.quantum)?)?;
            if address < pc {
                return Some(value);
            }
        }
        None
    }

    fn text_at(&self, offset: usize) -> Option<String> {
        let bytes = self.bytes.get(offset..)?;
        let end = bytes.iter().take(NAME_MAX).position(|b| *b == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// The name of the function at an address, with the file and line.
    pub fn name(&self, address: u64) -> Option<(String, Option<String>)> {
        let function = self.find(address)?;
        let name = self.text_at(self.names.checked_add(self.field(&function, 4)?)?)?;
        Some((name, self.line(&function, address)))
    }

    /// The file and line of an address. Where the compiler inlined a function of another file, the
    /// line is not one of this function, and only the file is returned.
    fn line(&self, function: &Function, address: u64) -> Option<String> {
        let (start, here) = (self.file(function, function.range.start)?, self.file(function, address)?);
        if start != here {
            return Some(start);
        }
        let line = self.value(function, self.field(function, 24)?, address)?;
        Some(format!("{here}:{line}"))
    }

    fn file(&self, function: &Function, address: u64) -> Option<String> {
        let number = usize::try_from(self.value(function, self.field(function, 20)?, address)?).ok()?;
        let unit = self.field(function, 32)?.checked_add(number)?.checked_mul(4)?;
        let file = half(&self.bytes, self.units.checked_add(unit)?)? as usize;
        self.text_at(self.files.checked_add(file)?)
    }

    /// The distance from the stack pointer to the return address, at an address inside a function.
    pub fn frame(&self, address: u64) -> Option<u64> {
        let function = self.find(address)?;
        u64::try_from(self.value(&function, self.field(&function, 16)?, address)?).ok()
    }

    /// Whether the function at an address has no caller.
    pub fn is_outermost(&self, address: u64) -> bool {
        self.name(address).is_some_and(|(name, _)| OUTERMOST.iter().any(|outer| name.starts_with(outer)))
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
}

fn varint<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..32).step_by(7) {
        let byte = bytes.next()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
#[path = "go_tests.rs"]
mod tests;
