//! Wraps the prose of a Markdown document at [`WIDTH`] characters. Tables, headings, code and comments stay as they are.

pub const WIDTH: usize = 100;

/// The document with its paragraphs and list items wrapped. Wrapping what is wrapped changes nothing.
pub fn wrap(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        let is_indented_code = paragraph.is_empty() && line.starts_with("    ");
        let verbatim = ["|", "#", "<!--"].iter().any(|mark| line.starts_with(mark)) || is_indented_code;
        if fence || in_code || verbatim || line.trim().is_empty() {
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

/// Bytes of a list item's mark (`- `, `* `, `12. `); 0: no list item.
fn bullet(line: &str) -> usize {
    if line.starts_with("- ") || line.starts_with("* ") {
        return 2;
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && line[digits..].starts_with(". ") { digits + 2 } else { 0 }
}

fn flush(paragraph: &mut Vec<&str>, out: &mut Vec<String>) {
    let Some(first) = paragraph.first() else { return };
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
        // A number or dash at the start of a line would begin a list.
        let starts_list = bullet(&format!("{word} ")) > 0;
        if !is_empty && !starts_list && line.chars().count() + 1 + word.chars().count() > WIDTH {
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
    paragraph.clear();
}

#[cfg(test)]
#[path = "wrap_tests.rs"]
mod tests;
