#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn rows_that_were_not_run_keep_their_results() {
    let (one, two) = (("save in place", "strict"), ("save in place", "ext4"));
    let key = |(name, model): (&str, &str)| format!("| {name} | {model} |");
    let old = format!(
        "a\n{BEGIN}\n{HEAD}\n{} old |\n{} old |\n| gone | ext4 | old |\n{END}\nb\n",
        key(two),
        key(one)
    );
    let keys = || [one, two].into_iter().map(key);
    let results = [(key(one), format!("{} new |", key(one)))];
    let text = with_results(&old, keys(), HEAD, &results).unwrap();
    assert_eq!(text, format!("a\n{BEGIN}\n{HEAD}\n{} new |\n{} old |\n{END}\nb\n", key(one), key(two)));
    assert_eq!(with_results(&text, keys(), HEAD, &[]).unwrap(), text);
    assert!(with_results("no table", keys(), HEAD, &[]).is_err());
}

#[test]
fn each_row_has_a_name_of_its_own_and_scripts_that_exist() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut names: Vec<&str> = ROWS.iter().map(|r| r.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ROWS.len());
    for row in ROWS {
        let run = row.run.first().filter(|_| row.program != "env");
        let check = row.check.split('\'').nth(1).map(|s| s.trim_start_matches("$PROGRAMS/"));
        for script in run.copied().into_iter().chain(check).chain(row.prepare) {
            assert!(dir.join(script).is_file(), "{}: {script}", row.name);
        }
        assert!(!row.expect.is_empty() && row.states > 0, "{}", row.name);
    }
}

#[test]
fn each_description_of_the_hunt_can_be_read_and_is_complete() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let rows = hunt::rows(&dir).unwrap();
    let mut keys: Vec<String> = rows.iter().flat_map(hunt::Quarry::keys).collect();
    keys.sort_unstable();
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all, "two rows of one name");
    for quarry in &rows {
        let none: [String; 0] = [];
        assert_eq!(quarry.complaints(&dir), none, "{}", quarry.row.name);
    }
}
