use super::*;
use crate::backend::Mounted;

/// On a directory of the host, without a crash, the check finds nothing wrong with the workload.
#[test]
fn nothing_is_missing_without_a_crash() {
    let root = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Mounted(root.path().to_owned()));
    let writers = Writers::start(&backend, 3, "w", 1).unwrap();
    while writers.operations() < 600 && !writers.ended() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let end = writers.stop();
    assert_eq!(end.errors(), Vec::<&str>::new());
    assert!(end.fsyncs() > 50);
    verify_after(&*backend, &end, &end).unwrap();

    // The check detects each kind of loss.
    let name = |wanted: &dyn Fn(&FileState) -> bool| {
        let w = end.0.iter().find(|w| w.files.iter().any(wanted)).expect("there are such files");
        let f = w.files.iter().find(|f| wanted(f)).unwrap();
        root.path().join(&w.dir).join(f.names.last().unwrap())
    };
    let synced = name(&|f| f.acked_len > 0 && f.acked_len == f.len && !f.removing);
    let bytes = std::fs::read(&synced).unwrap();
    std::fs::write(&synced, &bytes[..bytes.len() - 1]).unwrap();
    assert!(verify_after(&*backend, &end, &end).unwrap_err().contains("bytes, acknowledged"));
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    std::fs::write(&synced, &flipped).unwrap();
    assert!(verify_after(&*backend, &end, &end).unwrap_err().contains("written was"));
    std::fs::remove_file(&synced).unwrap();
    assert!(verify_after(&*backend, &end, &end).unwrap_err().contains("under 0 names"));
    std::fs::write(&synced, &bytes).unwrap();
    verify_after(&*backend, &end, &end).unwrap();
    std::fs::write(root.path().join("w0/stranger"), "").unwrap();
    assert!(verify_after(&*backend, &end, &end).unwrap_err().contains("stranger"));
}

#[test]
fn slots_are_whole_or_refused() {
    let bytes = slot_bytes(3 << 16, 5);
    assert!(verify_slot(3, &bytes, 5, 6).is_ok());
    assert!(verify_slot(3, &bytes, 6, 6).is_err());
    assert!(verify_slot(3, &bytes, 1, 4).is_err());
    assert!(verify_slot(2, &bytes, 1, 6).is_err());
    assert!(verify_slot(3, &bytes[..bytes.len() - 1], 1, 6).is_err());
    assert!(verify_slot(3, b"", 1, 6).is_err());
}
