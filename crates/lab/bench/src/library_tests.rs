use super::*;

fn all_works<T: Target>(target: &T) {
    for (work, threads) in [(Work::Empty, 1), (Work::Empty, 3), (Work::Synced, 1), (Work::Synced, 3)] {
        assert!(files_per_second(target, work, threads, 20).unwrap() > 0.0, "{work:?} {threads}");
    }
}

#[test]
fn loops_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let library = Library::make(&dir.path().join("image"), 64 << 20).unwrap();
    all_works(&library);
    let mut names = Vec::new();
    library
        .0
        .readdir(Ino::ROOT, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    assert_eq!(names, [b".".to_vec(), b"..".to_vec()]);
    library.close().unwrap();

    let below = dir.path().join("host");
    std::fs::create_dir(&below).unwrap();
    all_works(&Host(below.clone()));
    assert_eq!(std::fs::read_dir(below).unwrap().count(), 0);
}

#[test]
fn errors_come_out() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host(dir.path().to_owned());
    std::fs::create_dir(dir.path().join("work")).unwrap();
    let error = files_per_second(&host, Work::Synced, 2, 1).unwrap_err();
    assert!(format!("{error:#}").contains("work"), "{error:#}");
}
