use super::*;

#[test]
fn a_check_that_begins_with_a_relative_path_is_found_where_it_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let here = dir.path().join("it's here");
    std::fs::create_dir_all(here.join("bin")).expect("a directory");
    for file in ["check.sh", "bin/check"] {
        std::fs::write(here.join(file), "").expect("a file");
    }
    let quoted = here.display().to_string().replace('\'', "'\\''");
    let found = |command: &str| found_from(command, &here);
    assert_eq!(found("./check.sh"), format!("'{quoted}/./check.sh'"));
    assert_eq!(found(" bin/check -v  x"), format!("'{quoted}/bin/check' -v  x"));
    // Missing files, words without a path, absolute paths, and words for the shell stay as they
    // are.
    for other in
        ["./other.sh", "check.sh", "bin", "bin/", "sh ./check.sh", "/bin/true", "./che*", "./check.sh;true"]
    {
        assert_eq!(found(other), other);
    }
}
