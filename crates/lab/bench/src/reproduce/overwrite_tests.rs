use super::*;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};

const SIZE: u64 = 2 << 20;

#[test]
fn every_call_is_counted_on_both_sides() {
    let interrupt = Interrupt::new(|_| {});
    let library =
        Library::on(Arc::new(MemDevice::new(128 << 20)), &FormatOptions::default(), MountOptions::default());
    let library = library.unwrap();
    let own: Vec<_> = (0..3).map(|i| library_file(&library, &format!("f{i}"), SIZE).unwrap()).collect();
    let time = Duration::from_millis(100);
    let sum = run(&own, SIZE, 3, time, 1, &interrupt).unwrap();
    assert!(sum.latency.count() > 0.0);
    assert_eq!(sum.calls, sum.latency.count() + 3.0);
    let attr = library.fs().lookup(Ino::ROOT, b"f2").unwrap();
    assert_eq!(attr.size, SIZE + 2 * BLOCK, "the first block past the end is a hole");
    library.close().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let shared = [host_file(dir.path(), "f", SIZE).unwrap()];
    let sum = run(&shared, SIZE, 4, time, 0, &interrupt).unwrap();
    assert_eq!(sum.calls, sum.latency.count() + 1.0);
    assert!(sum.rate > 0.0 && sum.seconds >= time.as_secs_f64());
    interrupt.raise();
    assert!(run(&shared, SIZE, 4, time, 0, &interrupt).is_err());
}
