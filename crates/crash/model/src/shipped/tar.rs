//! Judges whether a tar archive is complete: each header must have its checksum, each member its
//! bytes, and two blocks of zeros must end the archive.
//!
//! Listing the archive by tar(1) would not suffice: tar accepts an archive that ends between two
//! members, and a file of zeros. The bytes of members have no checksum, so a lost page inside a
//! member cannot be detected.

use crate::state::FileBody;

const BLOCK: usize = 512;
type Block = [u8; BLOCK];

/// The positions of the checksum, the size and the type in the header of a member.
const SUM: std::ops::Range<usize> = 148..156;
const SIZE: std::ops::Range<usize> = 124..136;
const KIND: usize = 156;
/// The positions of the flag of GNU tar's sparse members that another block of the map follows: in
/// the header, and in such a block.
const MORE_IN_HEADER: usize = 482;
const MORE_IN_MAP: usize = 504;

pub fn check(file: &FileBody) -> Result<(), String> {
    let (mut at, mut members) = (0, 0u64);
    loop {
        let header = block(file, at)?;
        if header == [0; BLOCK] {
            let is_end = block(file, at + BLOCK as u64)? == [0; BLOCK];
            return match (is_end, members) {
                (false, _) => Err(format!("a block of zeros at {at}, which does not end the archive")),
                (true, 0) => Err("an archive without a member".to_owned()),
                (true, _) => Ok(()),
            };
        }
        members += 1;
        if number(&header[SUM]) != Some(sum(&header)) {
            return Err(format!("the header at {at} has another checksum"));
        }
        let size = number(&header[SIZE]).ok_or_else(|| format!("the header at {at} has no size"))?;
        let mut next = at + BLOCK as u64;
        let mut has_more = header[KIND] == b'S' && header[MORE_IN_HEADER] != 0;
        while has_more {
            has_more = block(file, next)?[MORE_IN_MAP] != 0;
            next += BLOCK as u64;
        }
        let len = size.div_ceil(BLOCK as u64).checked_mul(BLOCK as u64);
        at = len.and_then(|len| next.checked_add(len)).ok_or_else(|| cut(file))?;
        if at > file.size {
            return Err(cut(file));
        }
    }
}

fn block(file: &FileBody, at: u64) -> Result<Block, String> {
    let mut block = [0; BLOCK];
    match file.read(at, &mut block) {
        BLOCK => Ok(block),
        _ => Err(cut(file)),
    }
}

fn cut(file: &FileBody) -> String {
    format!("the archive is cut off: it has {} bytes", file.size)
}

/// The sum of the header's bytes, with blanks in place of the checksum field.
fn sum(header: &Block) -> u64 {
    let plain = header.iter().enumerate().filter(|(i, _)| !SUM.contains(i));
    plain.map(|(_, byte)| u64::from(*byte)).sum::<u64>() + u64::from(b' ') * SUM.len() as u64
}

/// Parses a number in octal digits, or in base 256 if the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let is_small = high[0] == 0x80 && high[1..].iter().all(|b| *b == 0);
        return is_small.then(|| low.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(|c| c == ' ' || c == '\0'), 8).ok()
}
