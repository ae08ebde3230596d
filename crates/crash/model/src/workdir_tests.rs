#![allow(clippy::unwrap_used)]

use super::*;

const PREFIX: &str = "work-";

fn names(place: &Path) -> Vec<PathBuf> {
    fs::read_dir(place).unwrap().map(|e| e.unwrap().path()).collect()
}

#[test]
fn what_nobody_holds_is_removed_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let living = WorkDir::new(place.path(), PREFIX, |_| Ok(())).unwrap();
    fs::write(living.path().join("file"), "in use").unwrap();
    // A killed process left this directory, whose lock is free.
    let dead = place.path().join("work-1-abandoned");
    fs::create_dir_all(dead.join("job0/state")).unwrap();
    fs::write(dead.join("job0/state/file"), "left").unwrap();
    // This directory stays, because its name has another prefix.
    let other = place.path().join("other");
    fs::create_dir(&other).unwrap();
    let target = tempfile::tempdir().unwrap();
    fs::write(target.path().join("precious"), "").unwrap();
    let link = place.path().join("work-link");
    std::os::unix::fs::symlink(target.path(), &link).unwrap();
    fs::write(place.path().join("work-file"), "").unwrap();

    let second = WorkDir::new(place.path(), PREFIX, |_| Ok(())).unwrap();
    assert!(!dead.exists());
    assert_eq!(fs::read_to_string(living.path().join("file")).unwrap(), "in use");
    assert!(other.exists() && link.exists() && target.path().join("precious").exists());
    assert_eq!(names(place.path()).len(), 5, "{:?}", names(place.path()));
    let paths = [living.path().to_owned(), second.path().to_owned()];
    drop((living, second));
    assert!(paths.iter().all(|p| !p.exists()));
}

#[test]
fn what_cannot_be_released_stays_and_the_run_starts() {
    let place = tempfile::tempdir().unwrap();
    let dead = place.path().join("work-1-abandoned");
    fs::create_dir(&dead).unwrap();
    let refuse = |path: &Path| Err(io::Error::other(format!("{} is a mount", path.display())));
    let work = WorkDir::new(place.path(), PREFIX, refuse).unwrap();
    assert!(dead.exists() && work.path().exists());
}
