use super::options::TABLE;
use super::*;
use kedge_host::options::{KNOWN, MountWords};
use kedgefs::SWITCH_WORDS;
use std::collections::BTreeSet;

/// The words in backquotes of a row, without their values.
fn words(row: &options::Row) -> Vec<&'static str> {
    row.words.split('`').skip(1).step_by(2).collect()
}

fn name(word: &str) -> &str {
    word.split(['=', '[']).next().unwrap_or(word)
}

#[test]
fn every_option_is_described_and_no_other() {
    let described: BTreeSet<&str> = TABLE.iter().flat_map(words).map(name).collect();
    for word in KNOWN.iter().chain(SWITCH_WORDS) {
        assert!(described.contains(name(word)), "{word} is not described");
    }
    for word in TABLE.iter().flat_map(words).filter(|w| !w.contains(['=', '…'])) {
        let word = name(word);
        assert!(MountWords::parse([word]).is_ok(), "{word} is described and not taken");
    }
}

#[test]
fn operations_has_the_table_of_options() {
    let document = include_str!("../../../../docs/OPERATIONS.md");
    for row in TABLE {
        let star = if row.live { " \\*" } else { "" };
        let cell = |text: &str| text.replace('|', "\\|");
        let line = format!("| {}{star} | {} | {} |", cell(row.words), cell(row.means), cell(row.default));
        assert!(document.contains(&line.replace("|  |", "| |")), "docs/OPERATIONS.md lacks the line\n{line}");
    }
}

#[test]
fn every_command_that_is_shown_has_a_page() {
    let kedge = crate::command();
    let files: Vec<String> = pages(kedge.clone()).unwrap().into_iter().map(|p| p.file).collect();
    for command in kedge.get_subcommands() {
        let page = format!("kedge-{}.8", command.get_name());
        assert_eq!(files.contains(&page), !command.is_hide_set(), "{page}");
    }
    for page in ["kedge.8", "kedgefs.5", "mount.kedgefs.8", "kedge-crash-explore.8"] {
        assert!(files.iter().any(|f| f == page), "{page}");
    }
}

#[test]
fn pages_are_the_same_each_time() {
    let texts = || pages(crate::command()).unwrap().into_iter().map(|p| p.roff).collect::<Vec<_>>();
    assert!(texts() == texts());
}

#[test]
fn each_page_has_the_exit_codes_of_its_command() {
    let pages = pages(crate::command()).unwrap();
    let page = |name: &str| {
        let page = pages.iter().find(|p| p.file == name).unwrap();
        String::from_utf8(page.roff.clone()).unwrap()
    };
    let judged = ["explore", "replay", "cluster-explore", "cluster-replay"];
    for name in judged.map(|name| format!("kedge-crash-{name}.8")) {
        let name = &name;
        let text = page(name);
        assert!(text.contains("No verdict") && !text.contains("names what failed and where"), "{text}");
    }
    for name in ["kedge-crash-record.8", "kedge-crash-cluster-record.8"] {
        assert!(page(name).contains("exit code of the command"));
    }
}
