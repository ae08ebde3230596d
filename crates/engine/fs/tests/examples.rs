//! The examples do what they claim.

#[path = "../examples/crash.rs"]
mod crash;
#[path = "../examples/embed.rs"]
mod embed;
#[path = "../examples/in_memory.rs"]
mod in_memory;

#[test]
fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("app.kedge");
    assert_eq!((1..4).map(|_| embed::count_runs(&image).unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    // The process is killed in between, so the file system is not closed.
    let fs = kedgefs::FileSystem::open_image(&image).unwrap();
    embed::save(&fs.root().dir("settings").unwrap(), "runs", "41").unwrap();
    drop(fs);
    assert_eq!(embed::count_runs(&image).unwrap(), 42);
}

#[test]
fn in_memory_for_tests() {
    in_memory::main().unwrap();
}

#[test]
fn crashed_on_purpose() {
    crash::main().unwrap();
}
