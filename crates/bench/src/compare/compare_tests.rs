use super::*;
use kedge_device::MemDevice;
use std::sync::Arc;

/// Each load that needs no mount does its work on the library and on a directory.
#[test]
fn loads_do_their_work_in_both_worlds() {
    let device = Arc::new(MemDevice::new(256 << 20));
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).expect("opens");
    let image = Ground::Library(library);
    let temp = tempfile::tempdir().expect("a directory");
    for (i, load) in LOADS.iter().enumerate() {
        let Work::Calls(work) = load.work else { continue };
        let host = Root::Host(temp.path().to_owned()).make_dir(&format!("{i}")).expect("a directory");
        for root in [image.fresh().expect("empty"), host] {
            let rate = work(&root, load.threads, 20).unwrap_or_else(|e| panic!("{}: {e:#}", load.title));
            assert!(rate.is_finite() && rate > 0.0, "{}: {rate}", load.title);
        }
    }
}

#[test]
fn what_is_durable_is_compared_with_durable_writes() {
    let durable = LOADS.iter().filter(|load| fits(Peer::Raw, load)).count();
    assert_eq!(durable, 7);
    assert!(LOADS.iter().all(|load| fits(Peer::Ext4, load)));
    assert!(LOADS.iter().filter(|load| !fits(Peer::Library, load)).count() == 3, "programs need a mount");
}
