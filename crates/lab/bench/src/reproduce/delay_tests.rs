use super::*;
use kedge_base::{Clock, SystemClock};
use kedge_device::{Io, MemDevice, run_batch};

const DELAY: Duration = Duration::from_millis(20);

fn took(work: impl FnOnce()) -> Duration {
    let clock = SystemClock::default();
    let started = clock.monotonic();
    work();
    clock.since(started)
}

#[test]
fn only_what_makes_durable_takes_long() {
    let device = DelayedFlush::new(Arc::new(MemDevice::new(1 << 20)), DELAY);
    let block = IoBuf::zeroed(1);
    assert!(took(|| device.flush().unwrap()) >= DELAY);
    assert!(took(|| device.write(0, &block, true).unwrap()) >= DELAY);
    let batch =
        |fua| (0..2).map(|i| Io { offset: i * 4096, op: Op::Write { buf: IoBuf::zeroed(1), fua } }).collect();
    assert!(took(|| drop(run_batch(&device, batch(true)))) >= DELAY);
    // Only the fastest of several writes counts, since a busy machine may delay any of them.
    let fastest = (0..20).map(|_| took(|| device.write(0, &block, false).unwrap())).min().unwrap();
    assert!(fastest < DELAY, "{fastest:?}");
    assert_eq!((device.stats().flushes.get(), device.stats().fua_writes.get()), (1, 3));
}
