use super::*;

#[test]
fn a_file_belongs_to_the_crate_in_whose_folder_it_lies() {
    let folders = [("crates/engine/log", "kedge-log"), ("crates/doors/cli", "kedge")]
        .map(|(folder, name)| (folder.into(), name.to_owned()));
    let owner = |file: &str| owner(&folders, Path::new(file));
    assert_eq!(owner("crates/engine/log/src/lib.rs"), Some("kedge-log"));
    assert_eq!(owner("crates/doors/cli/tests/common/mod.rs"), Some("kedge"));
    assert_eq!(owner("crates/engine/logs/src/lib.rs"), None);
    assert_eq!(owner("docs/FORMAT.md"), None);
}

/// If a crate of the list were renamed, all of its tests would run without notice.
#[test]
fn the_slow_crates_exist() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    for name in SLOW {
        assert!(metadata.packages.iter().any(|package| package.name == *name), "{name}");
    }
}
