//! The operations of a live crash test: translates inode numbers, applies rules, records calls.

use super::{Live, Synced, processes, stale, without_generation};
use crate::rules::{Action, On};
use kedge_base::spawn_named;
use kedge_fuse::{Done, Ops, caller};
use kedgefs::{
    Attr, DirEntry, Error, FallocateMode, Ino, Owner, RenameMode, Result, SeekKind, SetAttr, StatFs,
    WriteMode, XattrMode,
};
use std::ops::Range;

impl Live {
    fn made(
        &self,
        dir: Ino,
        name: &[u8],
        make: impl FnOnce(&crate::Recording, Ino) -> Result<Attr>,
    ) -> Result<Attr> {
        self.change(On::Create, &[(dir, Some(name))], |world| {
            let real = self.real(dir)?;
            let attr = make(&world.recording, real)?;
            self.learn(real, name, attr.ino);
            Ok(self.shown_attr(attr))
        })
    }

    /// Makes an fsync fail, and leaves the pages as the file system `like` would.
    fn fail_fsync(&self, ino: Ino, errno: i32, like: crate::rules::Like) -> Error {
        let mut world = self.0.gate.write();
        let dropped = self.real(ino).and_then(|ino| self.0.drop_dirty(&world, ino, like));
        match dropped {
            Ok(()) => Error::Injected(errno),
            Err(e) => {
                world.failed = Some(format!("what a failed fsync leaves cannot be made: {e}"));
                stale()
            }
        }
    }

    /// Runs an fsync, unless a rule lets it fail or crash. The fsync belongs to the generation in
    /// which it arrived, even if a rule delays it.
    fn ruled_fsync(&self, of: Synced, done: Done) {
        let done = self.unless_crashed(done);
        match self.meet(On::Fsync, &[(of.ino, None)]) {
            None => self.fsync(of, None, done),
            Some(Action::Fail { errno, like }) => done(Err(self.fail_fsync(of.ino, errno, like))),
            Some(Action::Crash { crash, after: false, kill }) => {
                self.crash(&crash, &processes(kill, caller()));
                done(Err(stale()));
            }
            Some(Action::Crash { crash, after: true, kill }) => {
                self.fsync(of, Some((crash, processes(kill, caller()))), done);
            }
            Some(Action::Slow(time)) => {
                let live = self.clone();
                let waiting = spawn_named("kedge-slow", move || {
                    std::thread::sleep(time);
                    live.fsync(of, None, done);
                });
                // `done` was dropped with the closure; the drop completes the fsync with EIO.
                if let Err(e) = waiting {
                    tracing::error!("no slow fsync: a thread cannot be started: {e}");
                }
            }
        }
    }

    fn list(
        &self,
        dir: Ino,
        handle: Option<u64>,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let world = self.enter()?;
        world.recording.readdir(self.real_opened(dir, handle)?, cookie, &mut |entry| {
            visit(DirEntry { ino: self.shown(entry.ino), ..entry })
        })
    }
}

impl Ops for Live {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let world = self.enter()?;
        let real = self.real(dir)?;
        let attr = world.recording.lookup(real, name)?;
        self.learn(real, name, attr.ino);
        Ok(self.shown_attr(attr))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let world = self.enter()?;
        Ok(self.shown_attr(world.recording.getattr(self.real(ino)?)?))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let run = |world: &super::World| Ok(self.shown_attr(world.recording.setattr(self.real(ino)?, set)?));
        match set.size {
            Some(_) => self.change(On::Truncate, &[(ino, None)], run),
            None => self.enter().and_then(|world| run(&world)),
        }
    }

    fn create(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.made(dir, name, |fs, dir| fs.create(dir, name, mode, owner))
    }

    fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, owner: Owner) -> Result<Attr> {
        self.made(dir, name, |fs, dir| fs.mkdir(dir, name, mode, owner))
    }

    fn mknod(&self, dir: Ino, name: &[u8], mode: u32, rdev: u64, owner: Owner) -> Result<Attr> {
        self.made(dir, name, |fs, dir| fs.mknod(dir, name, mode, rdev, owner))
    }

    fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], owner: Owner) -> Result<Attr> {
        self.made(dir, name, |fs, dir| fs.symlink(dir, name, target, owner))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.enter()?.recording.readlink(self.real(ino)?)
    }

    fn tmpfile(&self, dir: Ino, mode: u32, owner: Owner) -> Result<Attr> {
        self.change(On::Create, &[(dir, None)], |world| {
            Ok(self.shown_attr(world.recording.tmpfile(self.real(dir)?, mode, owner)?))
        })
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change(On::Create, &[(dir, Some(name))], |world| {
            let real = self.real(dir)?;
            let attr = world.recording.link(self.real(ino)?, real, name)?;
            self.learn(real, name, attr.ino);
            Ok(self.shown_attr(attr))
        })
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let about = [(dir, Some(name))];
        self.change(On::Remove, &about, |world| world.recording.unlink(self.real(dir)?, name))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let about = [(dir, Some(name))];
        self.change(On::Remove, &about, |world| world.recording.rmdir(self.real(dir)?, name))
    }

    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.change(On::Rename, &[(dir, Some(name)), (new_dir, Some(new_name))], |world| {
            let (dir, new_dir) = (self.real(dir)?, self.real(new_dir)?);
            world.recording.rename(dir, name, new_dir, new_name, mode)?;
            // An exchange also moves the file with the new name; look it up before the call.
            if let Ok(moved) = world.recording.lookup(new_dir, new_name) {
                self.learn(new_dir, new_name, moved.ino);
            }
            Ok(())
        })
    }

    fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.list(dir, None, cookie, visit)
    }

    fn readdir_opened(
        &self,
        handle: u64,
        dir: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(dir, Some(handle), cookie, visit)
    }

    fn dir_handle(&self, dir: Ino) -> Result<Option<u64>> {
        let _world = self.enter()?;
        self.real(dir)?;
        Ok(Some(self.0.generation.load(std::sync::atomic::Ordering::Relaxed)))
    }

    fn read_uncached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.enter()?.recording.read_uncached(self.real(ino)?, offset, buf)
    }

    fn write_with(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        self.change(On::Write, &[(ino, None)], |world| {
            world.recording.write_with(self.real(ino)?, offset, data, mode)
        })
    }

    fn wrote_to_sync(&self, ino: Ino, range: Range<u64>) {
        // After a crash the number is of an earlier generation, and no FSYNC of it succeeds.
        if let Ok((world, ino)) = self.enter().and_then(|world| Ok((world, self.real(ino)?))) {
            world.recording.wrote_to_sync(ino, range);
        }
    }

    fn fallocate(&self, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.change(On::Write, &[(ino, None)], |world| {
            world.recording.fallocate(self.real(ino)?, mode, offset, len)
        })
    }

    fn seek(&self, ino: Ino, offset: u64, kind: SeekKind) -> Result<u64> {
        self.enter()?.recording.seek(self.real(ino)?, offset, kind)
    }

    fn fsync_async(&self, ino: Ino, datasync: bool, done: Done) {
        self.ruled_fsync(Synced { ino, handle: None, datasync }, done);
    }

    fn fsync_opened(&self, handle: u64, ino: Ino, datasync: bool, done: Done) {
        self.ruled_fsync(Synced { ino, handle: Some(handle), datasync }, done);
    }

    fn sync(&self) -> Result<()> {
        // Hold the gate, so that no crash comes before the sync returns.
        self.enter()?.recording.sync()
    }

    fn sync_async(&self, done: Done) {
        match self.enter() {
            Ok(world) => world.recording.sync_async(self.unless_crashed(done)),
            Err(e) => done(Err(e)),
        }
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.enter()?.recording.getxattr(self.real(ino)?, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.enter()?.recording.setxattr(self.real(ino)?, name, value, mode)
    }

    fn list_xattrs(&self, ino: Ino, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        self.enter()?.recording.list_xattrs(self.real(ino)?, visit)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.enter()?.recording.removexattr(self.real(ino)?, name)
    }

    fn pin(&self, ino: Ino) -> Result<()> {
        self.enter()?.recording.pin(self.real(ino)?)
    }

    /// The kernel also releases inodes of earlier generations.
    fn unpin(&self, ino: Ino, count: u64) {
        self.0.fs.unpin(without_generation(ino), count);
    }

    fn statfs(&self) -> StatFs {
        self.0.fs.statfs()
    }

    fn shutdown(&self, flush: bool) -> Result<()> {
        self.0.fs.shutdown(flush)
    }

    fn stats_json(&self) -> String {
        self.0.fs.stats_json()
    }

    fn info_json(&self) -> String {
        self.0.fs.info_json()
    }

    fn set_options(&self, list: &str) -> Result<()> {
        self.0.fs.set_options(list)
    }
}
