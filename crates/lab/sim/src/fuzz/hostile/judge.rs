//! Checks what must hold for each image, however absurd its values are.

use super::super::change_names;
use super::super::damage::mount_options;
use super::super::inside::newest;
use crate::ops::OWNER;
use crate::view::View;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_format::FileKind;
use kedge_format::superblock::OPEN_MAX;
use kedge_fsck::{CheckOptions, Ending, RepairMode, RepairOptions, StoreReplay};
use kedgefs::{
    DirEntry, FallocateMode, FileSystem, Ino, MountOptions, RenameMode, SeekKind, SetAttr, SetLimit,
    XattrMode,
};
use std::sync::Arc;

#[derive(Clone, Copy, Default, Debug)]
pub struct Verdict {
    pub opens: bool,
    pub clean: bool,
    /// Whether `fsck -p` repaired the image or found it clean.
    pub preened: bool,
    /// Whether `fsck -y` repaired the image or found it clean.
    pub repaired: bool,
}

/// Judges an image by the rules of [`super`]. The error describes the violation.
pub fn judge(medium: &MemDevice) -> Result<Verdict, String> {
    let used = Arc::new(medium.fork());
    let mut verdict = Verdict { opens: use_it(used.clone()).is_ok(), ..Verdict::default() };
    if verdict.opens && !ends_soon(medium) && newest(&used).is_none() {
        return Err("it was used and closed, and then no superblock is valid".into());
    }
    let report = check(medium.fork());
    if report.is_clean() {
        verdict.clean = true;
        sound(medium, "fsck calls it clean")?;
        if !verdict.opens {
            return Err("fsck calls it clean, yet it cannot be used".into());
        }
    }
    for mode in [RepairMode::Preen, RepairMode::Full] {
        let device = Arc::new(medium.fork());
        let options = RepairOptions { force: true, ..RepairOptions::new(mode) };
        let repair = kedge_fsck::repair(device.clone(), &options);
        let fine = matches!(repair.ending, Ending::Clean | Ending::Repaired);
        if fine {
            sound(&device, &format!("{mode:?} ends with {:?}", repair.ending))?;
        }
        match mode {
            RepairMode::Preen => verdict.preened = fine,
            RepairMode::Full => {
                verdict.repaired = fine;
                let message = &repair.message;
                let excused = newest(medium).is_none()
                    || message.contains("no space for")
                    || message.contains("used up");
                if !fine && !excused && repair.ending != Ending::Left {
                    return Err(format!("{mode:?} ends with {:?}: {message}\n{}", repair.ending, report));
                }
            }
        }
        if verdict.clean && !fine {
            return Err(format!("fsck calls it clean, {mode:?} ends with {:?}", repair.ending));
        }
    }
    Ok(verdict)
}

fn check(medium: MemDevice) -> kedge_fsck::Report {
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    kedge_fsck::check(Arc::new(medium), &options)
}

/// Checks that a second fsck finds nothing, that read-only and read-write mounts work, and that the
/// image is clean after use.
fn sound(medium: &MemDevice, why: &str) -> Result<(), String> {
    let report = check(medium.fork());
    if !report.is_clean() {
        return Err(format!("{why}, yet a second fsck reports: {report}"));
    }
    let options = MountOptions { read_only: true, ..mount_options() };
    let fs = FileSystem::open(Arc::new(medium.fork()), Arc::new(ManualClock::default()), options)
        .map_err(|e| format!("{why}, yet it does not open for reading: {e}"))?;
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet it cannot be read: {e}"))?;
    fs.close().map_err(|e| format!("{why}, yet a mount for reading cannot be closed: {e}"))?;
    let used = Arc::new(medium.fork());
    let fs = FileSystem::open(used.clone(), Arc::new(ManualClock::default()), mount_options())
        .map_err(|e| format!("{why}, yet it does not open: {e}"))?;
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet it cannot be read: {e}"))?;
    change(&fs);
    View::of_damaged(&fs).map_err(|e| format!("{why}, yet after use it cannot be read: {e}"))?;
    fs.close().map_err(|e| format!("{why}, yet it cannot be closed: {e}"))?;
    let report = check(used.fork());
    if !report.is_clean() && !ends_soon(medium) {
        return Err(format!("{why}, yet after use: {report}"));
    }
    Ok(())
}

/// Whether a counter is so close to its maximum that use may exceed it. Only a crafted image can
/// come to that.
fn ends_soon(medium: &MemDevice) -> bool {
    newest(medium).is_some_and(|sb| {
        let c = &sb.checkpoint;
        let counters = [c.generation.0, c.epoch.0, c.next_ino.0, c.checkpoint_lsn.0];
        counters.into_iter().any(|n| n > OPEN_MAX - (1 << 32))
    })
}

fn open(medium: Arc<MemDevice>) -> Result<FileSystem, kedgefs::Error> {
    FileSystem::open(medium, Arc::new(ManualClock::default()), mount_options())
}

/// Opens, walks, changes and closes the image. A hostile image may return errors, but must not
/// panic.
fn use_it(medium: Arc<MemDevice>) -> Result<(), kedgefs::Error> {
    let fs = open(medium)?;
    let _ = View::of(&fs);
    change(&fs);
    fs.close()
}

/// Changes a little of everything that is there.
fn change(fs: &FileSystem) {
    let dir = fs.lookup(Ino::ROOT, b"many").map_or(Ino::ROOT, |attr| attr.ino);
    if let Ok(file) = fs.create(dir, b"new file", 0o644, OWNER) {
        let _ = fs.write(file.ino, 3000, &[7; 10_000]);
        let _ = fs.fsync(file.ino, false);
    }
    let _ = fs.mkdir(Ino::ROOT, b"new directory", 0o755, OWNER);
    change_names(fs, dir);
    let files = View::of_damaged(fs).map(|view| view.inodes).unwrap_or_default();
    let files = files.into_values().filter(|found| found.attr.kind == kedgefs::FileKind::Regular);
    for (n, found) in files.take(12).enumerate() {
        let (ino, size) = (found.attr.ino, found.attr.size);
        let _ = fs.write(ino, size / 2, &[9; 5000]);
        let size = if n % 2 == 0 { size / 3 } else { size.saturating_add(1 << 40) };
        let _ = fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() });
        let _ = fs.removexattr(ino, b"user.filler");
    }
    roam(fs);
    change_trees(fs);
    change_limits(fs);
    let _ = fs.checkpoint();
    let _ = fs.sync();
}

/// Forks, deletes and measures trees.
fn change_trees(fs: &FileSystem) {
    let _ = fs.fork(Ino::ROOT, Ino::ROOT, b"new fork", false);
    for tree in fs.trees() {
        let _ = fs.tree_space(tree.root);
        let _ = fs.path_of(tree.dir);
        let _ =
            fs.create(tree.root, b"in a tree", 0o644, OWNER).map(|file| fs.write(file.ino, 0, &[1; 9000]));
    }
    let trees = fs.trees();
    for tree in trees.iter().skip(1).step_by(2) {
        let _ = fs.delete_tree(tree.dir, &tree.name);
    }
    let _ = fs.reclaim();
}

/// Sets limits, and works in directories below existing ones.
fn change_limits(fs: &FileSystem) {
    let set = SetLimit { bytes: Some(Some(64 << 10)), files: Some(Some(50)) };
    for limit in fs.limits().iter().take(20) {
        let _ = fs.statfs_at(limit.dir);
        let file = fs.create(limit.dir, b"below a limit", 0o644, OWNER);
        let _ = file.map(|file| fs.write(file.ino, 0, &[1; 9000]));
        let _ = fs.set_limit(limit.dir, SetLimit { bytes: Some(None), files: None });
    }
    let dir = fs.mkdir(Ino::ROOT, b"limited", 0o755, OWNER).map_or(Ino::ROOT, |attr| attr.ino);
    let _ = fs.set_limit(dir, set);
    let _ = fs.lookup(Ino::ROOT, b"many").map(|many| fs.set_limit(many.ino, set));
}

/// Limit of names that [`roam`] follows, since directories may contain one another in cycles.
const ROAM_MAX: usize = 120;

/// Follows names without remembering visited directories, and moves, links and removes what it
/// finds.
fn roam(fs: &FileSystem) {
    let (mut queue, mut found) = (vec![Ino::ROOT], Vec::new());
    while let Some(dir) = queue.pop().filter(|_| found.len() < ROAM_MAX) {
        let mut some = 0;
        let _ = fs.readdir(dir, 0, &mut |entry: DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                found.push((dir, entry.name.to_vec(), entry.ino, entry.kind));
                some += 1;
            }
            if entry.kind == FileKind::Directory && !matches!(entry.name, b"." | b"..") {
                queue.insert(0, entry.ino);
            }
            some < 20
        });
    }
    for (n, (dir, name, ino, kind)) in found.iter().enumerate() {
        let (to, other, _, _) = &found[(n * 7 + 3) % found.len()];
        let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let _ = match n % 8 {
            _ if *kind == FileKind::Directory && n % 3 == 0 => fs.rmdir(*dir, name),
            0 | 1 => fs.rename(*dir, name, *to, other, modes[n / 8 % 3]),
            2 => fs.rename(*dir, name, *to, format!("moved {n}").as_bytes(), RenameMode::Replace),
            3 => fs.unlink(*dir, name),
            4 => fs.link(*ino, *to, format!("link {n}").as_bytes()).map(drop),
            5 => fs.fallocate(*ino, FallocateMode::PunchHole, 100, 1 << 40),
            6 => fs.setxattr(*ino, b"user.more", &[n as u8; 700], XattrMode::Any),
            _ => fs.mkdir(*ino, b"below", 0o755, OWNER).map(drop),
        };
        for kind in [SeekKind::Data, SeekKind::Hole] {
            let _ = fs.seek(*ino, n as u64 * 4096, kind);
        }
    }
}
