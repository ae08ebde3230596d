//! Discards and crashes: a file is deleted, its blocks are discarded, and power fails. Afterwards
//! the deletion is durable, or the file still exists with all its bytes.

use crate::ops::OWNER;
use crate::rig;
use kedge_base::ManualClock;
use kedge_device::sim::{FaultPlan, SimDevice, StatePlan};
use kedgefs::{FileSystem, Ino};
use std::sync::Arc;

/// Length of a file: too long for the log, and short enough for a durable write, which needs no
/// flush. So earlier discards may not be flushed yet.
const LEN: usize = 48 << 10;

/// What discards the free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Giver {
    /// A trim request, which forces the log first.
    Trim,
    /// The background thread, with the option `discard`, before and after the deletion is durable.
    Background,
    /// A trim request from this offset on, whose first discard takes effect and fails. The later
    /// file gets the discarded blocks only for some offsets.
    FailedTrim(u64),
}

impl Giver {
    fn give(self, fs: &FileSystem, device: &SimDevice) -> Result<(), String> {
        let failed = |what: &'static str| move |e: kedgefs::Error| format!("{what}: {e}");
        match self {
            Giver::FailedTrim(start) => {
                // The trim forces the log first, so that is done before the plan counts.
                fs.sync().map_err(failed("sync"))?;
                device.set_plan(FaultPlan::new(1).done_and_failed(0, kedge_base::errno::EIO));
                let result = fs.trim(start, u64::MAX - start, 0);
                let strikes = device.strikes().len();
                device.set_plan(FaultPlan::new(1));
                match (result, strikes) {
                    (Err(_), 1) => Ok(()),
                    (result, strikes) => Err(format!("a failed trim: {result:?}, {strikes} failures")),
                }
            }
            Giver::Trim => fs.trim(0, u64::MAX, 0).map(drop).map_err(failed("trim")),
            Giver::Background => {
                fs.discard_now();
                fs.sync().map_err(failed("sync"))?;
                fs.discard_now();
                Ok(())
            }
        }
    }
}

/// Checks every crash state that `plan` selects, and returns their number.
pub fn check(giver: Giver, plan: StatePlan) -> Result<usize, String> {
    let mut setup = crate::explore::setup();
    setup.mount.discard = giver == Giver::Background;
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let failed = |what: &'static str| move |e: kedgefs::Error| format!("{what}: {e}");
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    for name in names {
        let ino = fs.create(Ino::ROOT, name, 0o644, OWNER).map_err(failed("create"))?.ino;
        fs.write(ino, 0, &content(name)).map_err(failed("write"))?;
    }
    fs.sync().map_err(failed("sync"))?;
    device.mark(1);
    fs.unlink(Ino::ROOT, names[0]).map_err(failed("unlink"))?;
    giver.give(&fs, &device)?;
    // The new data may overwrite discarded blocks. A deletion begins with a truncate.
    let ino = fs.create(Ino::ROOT, b"d", 0o644, OWNER).map_err(failed("create"))?.ino;
    fs.write(ino, 0, &content(b"d")).map_err(failed("write"))?;
    fs.fsync(ino, false).map_err(failed("fsync"))?;
    fs.unlink(Ino::ROOT, names[1]).map_err(failed("unlink"))?;
    giver.give(&fs, &device)?;
    drop(fs);
    let recording = device.recording();
    let mut count = 0;
    for state in recording.states(plan) {
        count += 1;
        let place = format!("state {count}, after event {}, {:?}", state.at, state.choice);
        rig::fsck(state.medium.fork()).map_err(|e| format!("{place}: {e}"))?;
        let mark = state.mark;
        let device = Arc::new(SimDevice::new(state.medium));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        intact(&fs, mark.is_some()).map_err(|e| format!("{place}: {e}"))?;
        if mark.is_some() && fs.lookup(Ino::ROOT, b"c").is_err() {
            return Err(format!("{place}: a file is gone that was not deleted"));
        }
    }
    Ok(count)
}

/// Checks that each existing file has its bytes, and after the sync that all files exist.
fn intact(fs: &FileSystem, synced: bool) -> Result<(), String> {
    for name in [b"a", b"b", b"c", b"d"] {
        let found = match fs.lookup(Ino::ROOT, name) {
            Ok(found) => found,
            Err(kedgefs::Error::NotFound) => continue,
            Err(e) => return Err(e.to_string()),
        };
        let mut is = vec![0; LEN];
        let n = fs.read(found.ino, 0, &mut is).map_err(|e| e.to_string())?;
        let whole = n == LEN || !synced || name == b"d";
        if !whole || is[..n] != content(name)[..n] {
            let name = String::from_utf8_lossy(name);
            return Err(format!("a discarded block: {name} has {n} bytes, and not those that were written"));
        }
    }
    Ok(())
}

fn content(name: &[u8]) -> Vec<u8> {
    name.iter().copied().cycle().take(LEN).collect()
}
