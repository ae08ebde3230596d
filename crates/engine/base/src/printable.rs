//! Text of others on a terminal.
//!
//! A name in an image, in an archive or in a recording, and what a server says, may hold the
//! sequences by which a terminal moves its cursor, sets its title or types into the shell, and
//! characters that turn the order of a line. They are shown as question marks, as ls(1) does.

/// Whether a terminal, or the layout of a line, would act upon the character.
pub fn is_acted_upon(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text as a terminal may get it. Line ends and tabs stay.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_acted_upon(c) && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

/// A name as a terminal may get it: on one line, and byte for byte where that does no harm.
pub fn printable_name(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            out.extend_from_slice(
                (if is_acted_upon(c) { '?' } else { c }).encode_utf8(&mut [0; 4]).as_bytes(),
            );
        }
        // Alone these are control characters to a terminal of eight bits.
        out.extend(chunk.invalid().iter().map(|b| if (0x80..0xa0).contains(b) { b'?' } else { *b }));
    }
    out
}

#[cfg(test)]
#[path = "printable_tests.rs"]
mod tests;
