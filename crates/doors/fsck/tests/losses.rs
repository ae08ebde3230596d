//! A superblock that records data lost at an unmount: every kind of check reports the loss, and a
//! repair reports and clears it.

use crate::common::{SIZE, check, clock};
use kedge_device::MemDevice;
use kedge_format::logwrite::LogSecret;
use kedge_fsck::{Ending, FindingKind, RepairKind, RepairMode, RepairOptions, repair};
use kedge_store::{FormatParams, OpenOptions, Store, read_superblock};
use std::sync::Arc;

fn open(device: &Arc<MemDevice>) -> Arc<Store> {
    Store::open(device.clone(), clock(), &OpenOptions::default()).unwrap()
}

fn unmounted(files_lost: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(SIZE));
    let params = FormatParams {
        size: SIZE,
        log_size: 1 << 20,
        label: String::new(),
        uuid: uuid::Uuid::from_u128(5),
        hash_seed: [6; 16],
        log_secret: LogSecret([7; 16]),
        uid: 0,
        gid: 0,
        immutable: false,
        data_checksums: false,
        inline_max: 0,
    };
    kedge_store::format(device.clone(), clock(), &params).unwrap();
    let store = open(&device);
    store.note_losses(files_lost);
    store.close().unwrap();
    device
}

#[test]
fn a_loss_is_an_error_until_a_repair_has_told_of_it() {
    for mode in [RepairMode::Preen, RepairMode::Full] {
        // An unmounted image, which a repair otherwise does not check, and an image that was in use
        // at a crash.
        for crashed in [false, true] {
            let device = unmounted(3);
            assert!(read_superblock(&*device).unwrap().0.checkpoint.clean);
            if crashed {
                drop(open(&device));
            }
            let report = check(&device);
            assert_eq!((report.count(FindingKind::DataLost), report.exit_code()), (1, 4), "{report}");
            assert!(report.to_string().contains("data-lost: data of 3 files"), "{report}");

            let done = repair(device.clone(), &RepairOptions::new(mode));
            assert_eq!((done.ending, done.exit_code), (Ending::Repaired, 1), "{done}");
            assert_eq!(done.count(RepairKind::LossesCleared), 1, "{done}");
            assert!(done.to_string().contains("losses-cleared: data of 3 files"), "{done}");
            assert_eq!(done.count(RepairKind::TreeRewritten), 0, "{done}");

            let after = check(&device);
            assert_eq!((after.exit_code(), after.errors + after.warnings), (0, 0), "{after}");
            let again = repair(device.clone(), &RepairOptions::new(mode));
            assert_eq!((again.ending, again.exit_code), (Ending::Skipped, 0), "{again}");
            let store = open(&device);
            assert_eq!(store.losses(), None);
            store.close().unwrap();
        }
    }
}

#[test]
fn an_image_without_losses_is_skipped_as_before() {
    let device = unmounted(0);
    assert_eq!(check(&device).exit_code(), 0);
    let done = repair(device.clone(), &RepairOptions::new(RepairMode::Preen));
    assert_eq!((done.ending, done.exit_code), (Ending::Skipped, 0), "{done}");
}
