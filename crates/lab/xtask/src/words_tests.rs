use super::*;

fn lines(file: &str, text: &str) -> Vec<String> {
    let found = find(file, text);
    found.iter().map(|fault| fault.split(':').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn each_rule_finds_its_phrase_and_allows_its_exceptions() {
    for rule in RULES {
        for text in [format!("{} x\n", rule.phrase), format!("x. {}\nx\n", rule.phrase)] {
            let found = find("x.md", &text);
            assert!(found.iter().any(|fault| fault.contains(rule.instead)), "{text}: {found:?}");
        }
        for plain in rule.except {
            assert!(plain.contains(rule.phrase), "{plain} is no exception of {}", rule.phrase);
            assert!(find("x.md", &format!("x {plain} x\n")).is_empty(), "{plain}");
        }
    }
}

#[test]
fn a_finding_names_file_line_word_and_replacement() {
    let found = find("docs/x.md", "# Head\n\none\nAnswers two\n");
    assert_eq!(found, ["docs/x.md:4: \"Answers\" is not used; instead: Returns"]);
}

#[test]
fn a_phrase_may_span_a_line_break_but_no_paragraph() {
    assert_eq!(lines("x.md", "- one so\n  many\n"), ["1"]);
    assert_eq!(lines("x.rs", "//! one in\n//! vain\nlet x = 1; // so many\n"), ["1", "3"]);
    assert!(lines("x.md", "- one so\n- many\n\nso\n\nmany\n| so |\n| many |\n").is_empty());
}

#[test]
fn only_whole_words_of_prose_are_found() {
    for (file, text) in [
        ("x.md", "`told` and teller, whole, write-behind, untold\n"),
        ("x.md", "```\nwho told\n```\n"),
        ("x.rs", "let told = \"so many // told\";\n/// ```\n/// told\n/// ```\nfn who() {}\n"),
        ("x.md", "what the user answers, and part of a file\n"),
    ] {
        assert!(lines(file, text).is_empty(), "{text}: {:?}", find(file, text));
    }
}

#[test]
fn messages_are_checked_where_they_are_no_tests() {
    let text = "bail!(\"{told} in vain\");\nlet (told, x) = (\"told\", \"who {who} \\\"is\\\"\"); // one\n";
    assert_eq!(lines("crates/a/b/src/x.rs", text), ["1", "2"]);
    for file in ["crates/a/b/src/x_tests.rs", "crates/a/b/tests/x.rs", "x.md"] {
        assert!(!has_messages(file), "{file}");
    }
    assert!(lines("crates/a/b/src/x_tests.rs", text).is_empty());
}

#[test]
fn only_the_text_of_released_versions_is_exempt() {
    assert!(applies_to("crates/engine/log/src/lib.rs") && applies_to("README.md"));
    assert!(!applies_to("CHANGELOG.md"));
}
