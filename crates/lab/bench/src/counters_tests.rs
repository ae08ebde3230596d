use super::*;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, Ino, MountOptions, Owner};
use std::sync::Arc;

#[test]
fn a_real_file_system_has_them() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let library =
        crate::library::Library::on(device, &FormatOptions::default(), MountOptions::default()).unwrap();
    let fs = library.fs();
    let before = Counters::of(fs).unwrap();
    let file = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).unwrap();
    fs.fsync(file.ino, false).unwrap();
    let after = Counters::of(fs).unwrap();
    assert_eq!(after.since(&before, "log/forces/fsync").unwrap(), 1.0);
    assert_eq!(after.forces_since(&before).unwrap(), 1.0, "every cause is there");
    assert!(after.quantile_since(&before, "operations/fsync", 0.999) > 0.0);
    assert!(after.average_since(&before, "fsync") > 0.0);
    assert!(after.average_since(&before, "fdatasync").is_nan());
    assert!(after.quantile_since(&before, "operations/fdatasync", 0.999).is_nan());
    assert_eq!(after.get("checkpoint/fsync_meanwhile_ns/count").unwrap(), 0.0);
    assert!(after.quantile_since(&before, "checkpoint/fsync_meanwhile_ns", 0.999).is_nan());
    assert!(format!("{:#}", after.get("log/forces/fsink").err().unwrap()).contains("fsink"));
    library.close().unwrap();
}

#[test]
fn quantiles_of_what_came_since() {
    let counters = |buckets: &str| {
        Counters::parse(&format!("{{\"log\":{{\"write_ns\":{{\"histogram\":{buckets},\"max\":50}}}}}}"))
            .unwrap()
    };
    let (before, after) = (counters("[0,0,0,1000]"), counters("[0,0,0,1000,90,0,10]"));
    assert_eq!(after.quantile_since(&before, "log/write_ns", 0.9), 16.0);
    assert_eq!(after.quantile_since(&before, "log/write_ns", 0.95), 48.0);
    assert_eq!(after.quantile_since(&before, "log/write_ns", 0.99), 50.0, "not above the largest");
}
