use super::*;

#[test]
fn nothing_that_a_terminal_acts_upon_is_left() {
    assert_eq!(printable("a\u{1b}]0;owned\u{7}b\u{9b}2J\u{202e}c\n\td"), "a?]0;owned?b?2J?c\n\td");
    assert_eq!(printable("häß – ok"), "häß – ok");
}

#[test]
fn a_name_stays_as_it_is_where_that_does_no_harm() {
    assert_eq!(printable_name("grün\u{85}\n".as_bytes()), "grün??".as_bytes());
    assert_eq!(printable_name(b"a\xff\x9b[2Jb\x1b"), b"a\xff?[2Jb?");
}
