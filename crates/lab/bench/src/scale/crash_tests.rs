use super::*;

/// Opening an image replays as many bytes as the log was filled with.
#[test]
fn the_log_is_as_full_as_was_asked_for() {
    const LOG: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("crash.img");
    for filler in FILLERS {
        let full = fill_log(&image, LOG, filler, None).unwrap();
        assert!((0.3..=1.0).contains(&(full / LOG as f64)), "{filler:?}: {full} of {LOG}");
        let want = full / 2.0;
        fill_log(&image, LOG, filler, Some(want)).unwrap();
        let device = FileDevice::open(&image, OpenOptions::default()).unwrap();
        let clock = Arc::new(SystemClock::default());
        let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
        let replayed = replayed(&fs).unwrap();
        // The used space of the log includes reservations for records about log-resident data, and
        // up to one batch more than requested.
        assert!(
            (want * 0.7..want + 0.1 * LOG as f64).contains(&replayed),
            "{filler:?}: {replayed} of {want}"
        );
        fs.shutdown(false).unwrap();
        drop(fs);
        fill_log(&image, LOG, filler, Some(want)).unwrap();
        assert!(open(&image).unwrap() > 0.0);
    }
}
