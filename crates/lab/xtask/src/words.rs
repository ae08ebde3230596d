//! Words that comments, documents and messages do not use, each with its replacement.
//!
//! Readers search for the field's terms and need a subject in each sentence. The words below hide
//! the subject or the verb. Quoted code, code blocks and the string literals of tests are not
//! checked.

use crate::wrap;

/// A phrase that is not used.
struct Rule {
    /// Whole words. A phrase that begins with a capital is an opening of a sentence and matches
    /// only with the capital; other phrases match in any case.
    phrase: &'static str,
    /// Longer phrases that contain this one and are plain English.
    except: &'static [&'static str],
    instead: &'static str,
}

const fn rule(phrase: &'static str, instead: &'static str) -> Rule {
    Rule { phrase, except: &[], instead }
}

const SUBJECT: &str = "the noun: thread, caller, waiter, receiver, process, test";
const REPORT: &str = "returns, reports, notifies, says, prints, distinguishes";
const HEAR: &str = "receives, is notified, gets the error";
const PERSON: &str = "the noun: another thread, no caller, some user, all users";
const RETURNS: &str = "returns the error";
const WHOSE_PART: &str = "begin with the subject: \"Only the part that … of a …\"";

const RULES: &[Rule] = &[
    Rule {
        phrase: "who",
        except: &[
            "user who",
            "users who",
            "person who",
            "people who",
            "reader who",
            "readers who",
            "programmer who",
            "programmers who",
            "administrator who",
            "administrators who",
            "attacker who",
            "engineer who",
            "engineers who",
        ],
        instead: SUBJECT,
    },
    rule("tell", REPORT),
    rule("tells", REPORT),
    Rule { phrase: "told", except: &["user was told"], instead: REPORT },
    rule("hear", HEAR),
    rule("hears", HEAR),
    rule("heard", HEAR),
    Rule {
        phrase: "behind",
        except: &[
            "left behind",
            "leave behind",
            "leaves behind",
            "leaves nothing behind",
            "nothing is left behind",
            "behind a mount",
            "behind the same mount",
            "behind the same kernel interface",
            "behind the same transport",
            "behind NBD",
            "falls behind",
            "fall behind",
            "lags behind",
            "lag behind",
        ],
        instead: "after, past, beyond, following",
    },
    rule("Of a", WHOSE_PART),
    rule("Of an", WHOSE_PART),
    rule("Of the", WHOSE_PART),
    rule("Of each", WHOSE_PART),
    rule("Of every", WHOSE_PART),
    rule("Answers", "Returns"),
    rule("so many", "the number, or \"this many\""),
    rule("anew", "again, from the start"),
    rule("for ever", "forever, permanently, without end"),
    rule("nobody else's business", "name the owner: \"only … may change it\""),
    rule("in vain", "without effect, unsuccessfully"),
    rule("to the letter", "exactly"),
    rule("now and then", "periodically, occasionally"),
    rule("just now", "currently"),
    Rule { phrase: "somebody", except: &["from somebody else", "until somebody deletes"], instead: PERSON },
    Rule { phrase: "nobody", except: &["as nobody", "\"nobody\""], instead: PERSON },
    Rule { phrase: "everybody", except: &["everybody may write"], instead: PERSON },
    rule("whoever", "\"a user who\", \"the thread that\""),
    rule("answers EIO", RETURNS),
    rule("answers EINVAL", RETURNS),
    rule("answers ENOENT", RETURNS),
    rule("answers ENOSPC", RETURNS),
    rule("answers EOPNOTSUPP", RETURNS),
];

/// Text of released versions stays as it was published.
const EXEMPT: &[&str] = &["CHANGELOG.md"];

/// Whether the check applies to `file`.
pub fn applies_to(file: &str) -> bool {
    !EXEMPT.contains(&file)
}

/// Finds the phrases in `text`, the content of `file`, that are not used. Returns one line for
/// each: `file:line: …`.
pub fn find(file: &str, text: &str) -> Vec<String> {
    let mut paragraphs = if file.ends_with(".rs") { of_comments(text) } else { of_document(text) };
    if has_messages(file) {
        paragraphs.extend(of_literals(text));
    }
    let mut found: Vec<(usize, String)> = Vec::new();
    for paragraph in paragraphs {
        for rule in RULES {
            found.extend(paragraph.matches(rule).map(|line| {
                (line, format!("{file}:{line}: \"{}\" is not used; instead: {}", rule.phrase, rule.instead))
            }));
        }
    }
    found.sort();
    found.into_iter().map(|(_, fault)| fault).collect()
}

/// Consecutive lines of prose, which are joined, since a phrase may span a line break.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// For each line: its offset in `text`, and its number.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, number: usize, line: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), number));
        self.text.push_str(line.trim());
    }

    /// The numbers of the lines in which the phrase of `rule` begins.
    fn matches<'a>(&'a self, rule: &Rule) -> impl Iterator<Item = usize> + 'a {
        let mut text = without_code(&self.text);
        for plain in rule.except {
            for (at, _) in offsets(&text, plain) {
                text.replace_range(at..at + plain.len(), &" ".repeat(plain.len()));
            }
        }
        offsets(&text, rule.phrase).into_iter().map(|(at, _)| {
            let line = self.lines.partition_point(|(offset, _)| *offset <= at) - 1;
            self.lines[line].1
        })
    }
}

/// The offsets at which `phrase` occurs in `text` as whole words.
fn offsets(text: &str, phrase: &str) -> Vec<(usize, usize)> {
    let exact = phrase.starts_with(char::is_uppercase);
    let (text, phrase) = if exact {
        (text.to_owned(), phrase.to_owned())
    } else {
        (text.to_ascii_lowercase(), phrase.to_ascii_lowercase())
    };
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(&phrase)
        .map(|(at, found)| (at, at + found.len()))
        .filter(|(at, end)| !text[..*at].ends_with(is_part) && !text[*end..].starts_with(is_part))
        .collect()
}

/// The text with spaces in place of everything between backticks.
fn without_code(text: &str) -> String {
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut in_code = true;
    for part in parts {
        out.push(' ');
        if in_code {
            out.push_str(&" ".repeat(part.len()));
        } else {
            out.push_str(part);
        }
        in_code = !in_code;
    }
    out
}

fn of_document(text: &str) -> Vec<Paragraph> {
    of_lines(text.lines().enumerate().map(|(i, line)| (i + 1, Some(line))))
}

/// Returns the paragraphs of the comments. A comment after code is a paragraph of its own.
fn of_comments(text: &str) -> Vec<Paragraph> {
    let comments =
        || text.lines().enumerate().map(|(i, line)| (i + 1, wrap::comment(line).map(|(_, text)| text)));
    let mut paragraphs = of_lines(comments());
    for ((number, comment), line) in comments().zip(text.lines()) {
        let after_code = line.split_once(" // ").filter(|(code, _)| quotes(code).is_multiple_of(2));
        if let (None, Some((_, comment))) = (comment, after_code) {
            let mut paragraph = Paragraph::default();
            paragraph.push(number, comment);
            paragraphs.push(paragraph);
        }
    }
    paragraphs
}

/// Whether the string literals of `file` are messages that are checked. This file is not, since it
/// contains the words themselves.
fn has_messages(file: &str) -> bool {
    file.ends_with(".rs")
        && file.contains("/src/")
        && !file.ends_with("_tests.rs")
        && !file.ends_with("xtask/src/words.rs")
}

/// Returns the string literals that have several words and begin and end on the same line, without
/// the names in their braces.
fn of_literals(text: &str) -> Vec<Paragraph> {
    let mut paragraphs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if wrap::comment(line).is_some() || !quotes(line).is_multiple_of(2) {
            continue;
        }
        let line = line.replace("\\\"", " ");
        for literal in line.split('"').skip(1).step_by(2).filter(|literal| literal.contains(' ')) {
            let words: Vec<&str> = literal
                .split('{')
                .enumerate()
                .filter_map(|(n, part)| if n == 0 { Some(part) } else { Some(part.split_once('}')?.1) })
                .collect();
            let mut paragraph = Paragraph::default();
            paragraph.push(i + 1, &words.join("…"));
            paragraphs.push(paragraph);
        }
    }
    paragraphs
}

/// The number of quotes in `code` that begin or end a string literal.
fn quotes(code: &str) -> usize {
    code.matches('"').count() - code.matches("\\\"").count()
}

/// Joins numbered lines into paragraphs. `None` stands for a line without prose. Code blocks are
/// left out.
fn of_lines<'a>(lines: impl Iterator<Item = (usize, Option<&'a str>)>) -> Vec<Paragraph> {
    let mut paragraphs = vec![Paragraph::default()];
    let mut in_code = false;
    for (number, line) in lines {
        let fence = line.is_some_and(wrap::is_fence);
        in_code = line.is_some() && (in_code ^ fence);
        let line = line.filter(|line| !fence && !in_code && !line.trim().is_empty());
        let begins = line.is_none_or(|line| {
            line.trim_start().starts_with(['|', '#', '<']) || wrap::bullet(line.trim_start()) > 0
        });
        if begins {
            paragraphs.push(Paragraph::default());
        }
        if let Some(line) = line {
            paragraphs.last_mut().expect("begins with one").push(number, line);
        }
    }
    paragraphs
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
