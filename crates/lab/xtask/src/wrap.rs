//! Wraps the prose of Markdown documents, and the comments of source files, at [`WIDTH`]
//! characters. Tables, headings and code stay as they are.

pub const WIDTH: usize = 100;

/// Returns the document with its paragraphs and list items wrapped. Wrapping a wrapped document
/// changes nothing.
pub fn wrap(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        let fence = is_fence(line);
        if fence || in_code || is_verbatim(line, paragraph.is_empty()) {
            flush(&mut paragraph, &mut out);
            out.push(if in_code || fence { line.to_owned() } else { line.trim_end().to_owned() });
            in_code ^= fence;
            continue;
        }
        if bullet(line.trim_start()) > 0 || line.starts_with("[^") {
            flush(&mut paragraph, &mut out);
        }
        paragraph.push(line);
    }
    flush(&mut paragraph, &mut out);
    out.join("\n") + "\n"
}

/// Returns the source text with the paragraphs of its comments wrapped. A paragraph whose lines all
/// fit keeps its line breaks, so that a change of a word does not move the lines after it. Comments
/// after code on the same line stay as they are.
pub fn wrap_comments(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let (mut prefix, mut in_code) = ("", false);
    for line in text.lines() {
        let (mark, body) = comment(line).unwrap_or(("", ""));
        if mark != prefix {
            flush_comment(&mut paragraph, prefix, &mut out);
            (prefix, in_code) = (mark, false);
        }
        let fence = !mark.is_empty() && is_fence(body);
        if mark.is_empty() || fence || in_code || is_verbatim(body, paragraph.is_empty()) {
            flush_comment(&mut paragraph, prefix, &mut out);
            out.push(line.to_owned());
            in_code ^= fence;
            continue;
        }
        if bullet(body.trim_start()) > 0 {
            flush_comment(&mut paragraph, prefix, &mut out);
        }
        paragraph.push(body);
    }
    flush_comment(&mut paragraph, prefix, &mut out);
    out.join("\n") + "\n"
}

pub fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Whether a line is not wrapped: a table, a heading, a Markdown comment, indented code, or a blank
/// line.
fn is_verbatim(line: &str, begins_paragraph: bool) -> bool {
    ["#", "<!--"].iter().any(|mark| line.starts_with(mark))
        || line.trim_start().starts_with('|')
        || (begins_paragraph && line.starts_with("    "))
        || line.trim().is_empty()
}

/// Splits a line that is a comment into indentation with marker, and text.
pub fn comment(line: &str) -> Option<(&str, &str)> {
    let indent = line.len() - line.trim_start().len();
    let marker = ["///", "//!", "//"].into_iter().find(|marker| line[indent..].starts_with(marker))?;
    let (mark, rest) = line.split_at(indent + marker.len());
    if rest.is_empty() { Some((mark, "")) } else { Some((mark, rest.strip_prefix(' ')?)) }
}

/// Length in bytes of a list item's mark (`- `, `* `, `12. `), or 0 if the line is no list item.
pub fn bullet(line: &str) -> usize {
    if line.starts_with("- ") || line.starts_with("* ") {
        return 2;
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && line[digits..].starts_with(". ") { digits + 2 } else { 0 }
}

fn flush(paragraph: &mut Vec<&str>, out: &mut Vec<String>) {
    out.extend(fill(paragraph, WIDTH));
    paragraph.clear();
}

fn flush_comment(paragraph: &mut Vec<&str>, prefix: &str, out: &mut Vec<String>) {
    let width = WIDTH.saturating_sub(prefix.chars().count() + 1);
    let lines = if paragraph.iter().all(|line| line.chars().count() <= width) {
        paragraph.iter().map(|line| (*line).to_owned()).collect()
    } else {
        fill(paragraph, width)
    };
    out.extend(lines.into_iter().map(|line| format!("{prefix} {line}")));
    paragraph.clear();
}

/// Wraps a paragraph into lines of at most `width` characters.
fn fill(paragraph: &[&str], width: usize) -> Vec<String> {
    let mut out = Vec::new();
    let Some(first) = paragraph.first() else { return out };
    let indent = first.len() - first.trim_start().len();
    let mark = bullet(first.trim_start());
    let (head, hang) = (&first[..indent + mark], " ".repeat(indent + mark));
    let mut line = head.to_owned();
    let mut is_empty = true;
    let words = paragraph.iter().enumerate().flat_map(|(i, text)| {
        let text = if i == 0 { &text[indent + mark..] } else { text };
        text.split_whitespace()
    });
    for word in words {
        // At the start of a line a number or dash would begin a list item.
        let starts_list = bullet(&format!("{word} ")) > 0;
        if !is_empty && !starts_list && line.chars().count() + 1 + word.chars().count() > width {
            out.push(std::mem::replace(&mut line, hang.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out.push(line);
    out
}

#[cfg(test)]
#[path = "wrap_tests.rs"]
mod tests;
