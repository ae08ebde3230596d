//! With `volatile` fsync and sync make nothing durable, and nothing else changes.
#![allow(clippy::disallowed_methods)]

use crate::common::failing::{Failing, MARK, PAGE};
use kedge_base::errno::EIO;
use kedgefs::*;
use std::sync::mpsc::channel;
use std::time::Duration;

fn options() -> MountOptions {
    MountOptions { volatile: true, commit: Duration::from_secs(3600), ..MountOptions::default() }
}

/// The numbers of writes and of flushes of the device.
fn asked(device: &Failing) -> [u64; 2] {
    let stats = kedgefs::device::Device::stats(&*device.sim);
    [stats.writes.get(), stats.flushes.get()]
}

#[test]
fn nothing_is_asked_of_the_device_until_the_end() {
    let device = Failing::new();
    let fs = device.open_with(options());
    let before = asked(&device);
    let ino = device.create(&fs, b"scratch");
    fs.write(ino, 0, &[7; 3 * PAGE]).unwrap();
    fs.fsync(ino, false).unwrap();
    fs.fsync(ino, true).unwrap();
    fs.fsync(Ino::ROOT, false).unwrap();
    fs.sync().unwrap();
    let (told, answer) = channel();
    let also = told.clone();
    fs.fsync_async(ino, false, Box::new(move |result| told.send(result).unwrap()));
    fs.sync_async(Box::new(move |result| also.send(result).unwrap()));
    answer.recv().unwrap().unwrap();
    answer.recv().unwrap().unwrap();
    assert_eq!(asked(&device), before);
    // The durable image can be opened, and does not have the file.
    assert!(!device.is_durable(b"scratch", &[7; 3 * PAGE]));
    fs.close().unwrap();
    assert!(device.is_durable(b"scratch", &[7; 3 * PAGE]) && device.is_clean());
}

/// A freeze, and a shutdown with `flush`, still make everything durable.
#[test]
fn a_freeze_and_a_shutdown_make_all_durable() {
    let device = Failing::new();
    let fs = device.open_with(options());
    let ino = device.create(&fs, b"frozen");
    fs.write(ino, 0, &[7; PAGE]).unwrap();
    fs.freeze().unwrap();
    assert!(device.is_durable(b"frozen", &[7; PAGE]));
    fs.thaw().unwrap();
    let ino = device.create(&fs, b"stopped");
    fs.write(ino, 0, &[8; PAGE]).unwrap();
    assert!(!device.is_durable(b"stopped", &[8; PAGE]));
    fs.shutdown(true).unwrap();
    assert!(device.is_durable(b"stopped", &[8; PAGE]));
    assert_eq!(fs.fsync(ino, false).unwrap_err().errno(), EIO);
    assert_eq!(fs.sync().unwrap_err().errno(), EIO);
}

#[test]
fn a_write_that_failed_is_told() {
    let device = Failing::new();
    let fs = device.open_with(options());
    let ino = device.create(&fs, b"unlucky");
    let mut bytes = vec![b'x'; 40 * PAGE];
    bytes.chunks_exact_mut(PAGE).for_each(|page| page[..MARK.len()].copy_from_slice(MARK));
    fs.write(ino, 0, &bytes).unwrap();
    device.refuse_marked(true);
    fs.freeze().unwrap_err();
    assert_eq!(fs.fsync(ino, false).unwrap_err().errno(), EIO);
    device.refuse_marked(false);
    fs.close().unwrap();
    assert!(device.is_durable(b"unlucky", &bytes));
}
