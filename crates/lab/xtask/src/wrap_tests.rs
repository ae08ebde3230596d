use super::*;

const LONG: &str = "word word word word word word word word word word word word word word word word word word word word word";

#[test]
fn prose_is_wrapped_and_stays_so() {
    let text =
        format!("# A heading that stays\n\n{LONG}\nmore\n\n- {LONG}\n  1. {LONG}\n     more\n- short\n");
    let wrapped = wrap(&text);
    assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
    assert_eq!(wrap(&wrapped), wrapped);
    assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
    assert!(wrapped.contains("\n- word") && wrapped.contains("\n  word") && wrapped.contains("\n     word"));
}

#[test]
fn tables_and_code_stay() {
    let row = format!("| {LONG} | {LONG} |");
    let text = format!(
        "{row}\n\n- item\n\n  {row}\n  {row}\n\n```\n{LONG} {LONG}\n\n    - not a list\n```\n\n    {LONG} {LONG}\n"
    );
    assert_eq!(wrap(&text), text);
}

/// A dash or number that wrapping moved to the start of a line would begin a list item.
#[test]
fn a_word_that_looks_like_a_mark_never_begins_a_line() {
    for mark in ["-", "12."] {
        let text = format!("{} {mark} word word word\n", &LONG[..WIDTH - 1]);
        let wrapped = wrap(&text);
        assert!(wrapped.lines().all(|line| bullet(line) == 0), "{wrapped}");
        assert_eq!(wrap(&wrapped), wrapped);
    }
}

#[test]
fn comments_are_wrapped_where_a_line_is_too_long() {
    let text = format!("    /// {LONG}\n    /// more\n    fn f() {{}} // {LONG}\n//! - {LONG}\n");
    let wrapped = wrap_comments(&text);
    let comments = || wrapped.lines().filter(|line| line.trim_start().starts_with("//"));
    assert!(comments().all(|line| line.chars().count() <= WIDTH), "{wrapped}");
    assert_eq!(comments().filter(|line| line.starts_with("    /// ")).count(), 2, "{wrapped}");
    assert!(
        wrapped.contains(&format!("fn f() {{}} // {LONG}\n")) && wrapped.contains("\n//!   word"),
        "{wrapped}"
    );
    assert_eq!(wrap_comments(&wrapped), wrapped);
}

#[test]
fn comments_that_fit_tables_and_code_in_comments_stay() {
    let text = format!(
        "// one\n// two\n\n/// | {LONG} |\n/// ```text\n/// {LONG} {LONG}\n/// ```\n////// {LONG} {LONG}\nlet x = 1;\n"
    );
    assert_eq!(wrap_comments(&text), text);
}
