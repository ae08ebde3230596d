//! Untrusted text on a terminal.
//!
//! Names in an image, an archive or a recording, and messages of a server, may contain the
//! sequences by which a terminal moves its cursor, sets its title or types into the shell, and
//! characters that reorder a line. They are replaced by question marks, as in ls(1).

/// Returns whether the character would control a terminal or change the layout of a line.
pub fn is_acted_upon(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text with each character that controls a terminal replaced by `?`. Line ends and
/// tabs stay.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_acted_upon(c) && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

/// Returns a name that is safe on a terminal: on one line, with harmless bytes unchanged.
pub fn printable_name(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            out.extend_from_slice(
                (if is_acted_upon(c) { '?' } else { c }).encode_utf8(&mut [0; 4]).as_bytes(),
            );
        }
        // An 8-bit terminal interprets these bytes as control characters when they stand outside of
        // UTF-8 sequences.
        out.extend(chunk.invalid().iter().map(|b| if (0x80..0xa0).contains(b) { b'?' } else { *b }));
    }
    out
}

#[cfg(test)]
#[path = "printable_tests.rs"]
mod tests;
