use super::*;
use kedge_device::Device;

const SPEED: Speed = Speed {
    latency: Duration::from_millis(2),
    depth: 1,
    bytes_per_second: 4096 * 1000,
    flush: Duration::from_millis(5),
};

/// The times follow from the speed. Only lower bounds are checked, since the machine may be busy.
#[test]
fn requests_wait_for_a_channel_for_the_bandwidth_and_for_the_latency() {
    let disk = TimedDisk::new(1 << 20, SPEED).expect("a test can start a thread");
    let mut queue = disk.shared.queue.lock();
    let first = disk.shared.ends(&mut queue, 4096, false);
    let second = disk.shared.ends(&mut queue, 8192, false);
    let flush = disk.shared.ends(&mut queue, 0, true);
    assert_eq!(second, first + Duration::from_millis(4));
    assert_eq!(flush, second + Duration::from_millis(7));
}

#[test]
fn what_was_written_is_read_and_takes_its_time() {
    let disk: Arc<dyn Device> = Arc::new(TimedDisk::new(1 << 20, SPEED).expect("a test can start a thread"));
    let clock = SystemClock::default();
    let start = clock.monotonic();
    let mut buf = IoBuf::zeroed(1);
    buf.as_mut_bytes().fill(0x6b);
    disk.write(4096, &buf, true).expect("in range");
    assert!(clock.since(start) >= Duration::from_millis(8));
    let mut read = IoBuf::zeroed(1);
    disk.read(4096, &mut read).expect("in range");
    assert_eq!(read.as_bytes(), buf.as_bytes());
    assert!(clock.since(start) >= Duration::from_millis(11));
}
