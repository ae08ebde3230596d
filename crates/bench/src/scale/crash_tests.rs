use super::*;

/// The part of the log that opening has to replay is the part that was asked for.
#[test]
fn the_log_is_as_full_as_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("crash.img");
    for filler in FILLERS {
        crash(&image, 8 << 20, filler, 0.5).unwrap();
        let device = FileDevice::open(&image, OpenOptions::default()).unwrap();
        let clock = Arc::new(SystemClock::default());
        let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
        let part = replayed(&fs).unwrap() / f64::from(8 << 20);
        // A batch more than what was asked for, at most.
        assert!((0.45..0.8).contains(&part), "{filler:?}: {part} of the log");
        fs.shutdown(false).unwrap();
        drop(fs);
        std::fs::remove_file(&image).unwrap();
        crash(&image, 8 << 20, filler, 0.5).unwrap();
        assert!(open(&image).unwrap() > 0.0);
        std::fs::remove_file(&image).unwrap();
    }
}
