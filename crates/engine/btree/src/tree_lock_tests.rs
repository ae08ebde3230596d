use super::*;

#[test]
fn names_are_read_as_they_are_written() {
    for &lock in TreeLock::ALL {
        assert_eq!(lock.to_string().parse::<TreeLock>().expect("its own name"), lock);
    }
    assert_eq!(format!("{:>8}", TreeLock::Rwlock), "  rwlock");
}

#[test]
fn another_name_is_refused_with_the_right_ones() {
    for text in ["", "Rwlock", "mutex"] {
        let error = text.parse::<TreeLock>().expect_err("no such lock").to_string();
        assert!(error.contains(&TreeLock::names()) && error.contains(text), "{error}");
    }
}
