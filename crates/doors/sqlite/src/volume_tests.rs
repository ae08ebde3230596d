use super::*;

/// Runs `work` in a forked child, and returns whether it returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child waits for no lock that a thread of the parent may have held: all calls
    // in `work` shall return before they take one. It ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; an alarm ends a child that waits.
        unsafe { libc::alarm(20) };
        let code = i32::from(!work());
        // SAFETY: as above.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

#[test]
fn a_child_is_refused_and_does_not_wait_for_a_thread_of_its_parent() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("disk").display().to_string();
    FileSystem::create_image(&image, 32 << 20).unwrap().close().unwrap();
    let name = Name { image, path: "/app.db".to_owned() };
    drop(Use::of(&name, "").unwrap());
    let held = IMAGES.lock();
    assert!(in_child(|| Use::of(&name, "").is_err_and(|e| e.text.contains("forked"))));
    drop(held);
    // The image is closed, so only the library itself keeps the child from it.
    assert!(
        in_child(|| FileSystem::open_image(&name.image).is_err_and(|e| e.to_string().contains("forked")))
    );
    drop(Use::of(&name, "").unwrap());
    assert!(!IMAGES.lock().contains_key(&name.image), "no slot is left");
}

#[test]
fn two_names_of_an_image_are_one_image_and_a_failed_open_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let [image, alias, none] =
        ["two", "alias", "none"].map(|name| place.path().join(name).display().to_string());
    FileSystem::create_image(&image, 32 << 20).unwrap().close().unwrap();
    std::fs::hard_link(&image, &alias).unwrap();
    let named = |image: &str| Name { image: image.to_owned(), path: "/app.db".to_owned() };
    let first = Use::of(&named(&image), "").unwrap();
    assert!(first.is_only());
    let second = Use::of(&named(&alias), "").unwrap();
    assert!(Arc::ptr_eq(first.volume.as_ref().unwrap(), second.volume.as_ref().unwrap()));
    assert!(!first.is_only());
    assert!(Use::of(&named(&none), "").is_err());
    drop(first);
    second.volume().root.create("/f").unwrap();
    drop(second);
    let left = IMAGES.lock();
    assert!([&image, &alias, &none].iter().all(|name| !left.contains_key(*name)));
}
