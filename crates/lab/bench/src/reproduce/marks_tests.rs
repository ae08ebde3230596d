use super::*;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};
use std::sync::Arc;

#[test]
fn modes_sync_what_they_say() {
    for (mode, fsyncs) in [(0, 0.0), (1, 96.0), (2, 32.0), (3, 96.0), (4, 96.0), (5, 96.0), (6, 96.0)] {
        let device = Arc::new(MemDevice::new(64 << 20));
        let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).unwrap();
        let sum = run(&library, mode, 3, &Interrupt::new(|_| {})).unwrap();
        assert_eq!((sum.create.count(), sum.fsync.count()), (96.0, fsyncs), "{}", MODES[mode]);
        assert!(sum.rate > 0.0);
        library.close().unwrap();
    }
}
