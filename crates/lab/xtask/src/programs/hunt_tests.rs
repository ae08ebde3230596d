#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn a_failure_of_the_model_alone_is_not_called_shown() {
    assert_eq!(verdict(Some(1), false, false), "suspected (model only)");
    assert_eq!(verdict(Some(1), false, true), "shown");
    assert_eq!(verdict(Some(1), true, true), "loses, as documented");
    assert_eq!(verdict(Some(0), false, true), "keeps it");
    assert_eq!(verdict(Some(4), false, true), "only before the first promise");
    for code in [Some(2), Some(3), None] {
        assert_eq!(verdict(code, false, true), "no verdict");
    }
}

#[test]
fn a_published_fault_counts_only_with_its_own_message() {
    let report = "3 of 9 distinct crash states fail under ext4\njoe was saved and is not there";
    assert_eq!(found_again(Some(1), report, "joe was saved"), "found again");
    assert_eq!(found_again(Some(4), report, "joe was saved"), "found again, before the first promise");
    assert_eq!(found_again(Some(1), report, "the server does not start"), "NOT found again");
    assert_eq!(found_again(Some(0), report, "joe was saved"), "NOT found again");
    assert_eq!(found_again(Some(3), report, "joe was saved"), "no verdict");
}

#[test]
fn a_check_for_a_published_fault_passes_with_any_other() {
    let code = |check: &str| {
        let check = only_with(check, "the sought one");
        std::process::Command::new("sh").args(["-c", &check]).output().unwrap().status.code()
    };
    assert_eq!(code("true"), Some(0));
    assert_eq!(code("sh -c 'echo another fault; exit 1'"), Some(0));
    assert_eq!(code("sh -c 'echo this is the sought one >&2; exit 1'"), Some(1));
}

#[test]
fn states_are_read_from_both_kinds_of_report() {
    assert_eq!(states_in("no failure in 198 distinct crash states under disk-4k\n"), Some(198));
    assert_eq!(states_in("3 of 9 distinct crash states fail under ext4, of 2 causes\n"), Some(9));
    assert_eq!(states_in("kedge: no such file"), None);
}

#[test]
fn a_description_with_an_unknown_word_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let row = dir.path().join("hunt/zoo");
    std::fs::create_dir_all(&row).unwrap();
    let text = "name = \"Zoo\"\nsettings = \"default\"\npromise = \"x\"\nsource = \"y\"\n";
    std::fs::write(row.join("row.toml"), text).unwrap();
    assert_eq!(rows(dir.path()).unwrap()[0].row.name, "Zoo");
    std::fs::write(row.join("row.toml"), format!("{text}promised_nothing = true\n")).unwrap();
    let error = format!("{:#}", rows(dir.path()).err().unwrap());
    assert!(error.contains("promised_nothing") && error.contains("row.toml"), "{error}");
}
