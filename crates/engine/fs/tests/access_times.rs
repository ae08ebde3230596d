//! Access times follow relatime, for files that are read, directories that are listed, and symbolic
//! links that are followed.
#![allow(clippy::disallowed_methods)]

use crate::common::failing::Failing;
use kedgefs::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A file system with a file, a directory and a symbolic link, all of which are read together.
struct Read {
    fs: FileSystem,
    inos: [Ino; 3],
}

impl Read {
    fn all(&self) -> [Timespec; 3] {
        let [file, dir, link] = self.inos;
        self.fs.read(file, 0, &mut [0; 8]).unwrap();
        self.fs.readdir(dir, 0, &mut |_| true).unwrap();
        assert_eq!(self.fs.readlink(link).unwrap(), b"target");
        self.atimes()
    }

    /// Checks that reading updates all three access times. Returns the new ones.
    fn moved(&self, before: [Timespec; 3]) -> [Timespec; 3] {
        let now = self.all();
        assert!(before.iter().zip(&now).all(|(before, now)| now > before), "{before:?} {now:?}");
        assert_eq!(self.atimes(), now);
        now
    }

    fn atimes(&self) -> [Timespec; 3] {
        self.inos.map(|ino| self.fs.getattr(ino).unwrap().atime)
    }

    fn change(&self) {
        for ino in self.inos {
            self.fs.setattr(ino, &SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
        }
    }
}

#[test]
fn reading_moves_a_time_that_says_less_than_the_last_change_or_is_a_day_old() {
    let device = Failing::new();
    let open = |options| device.open_with(MountOptions { commit: 1000 * DAY, ..options });
    let fs = open(MountOptions::default());
    let file = device.create(&fs, b"file");
    fs.write(file, 0, b"contents").unwrap();
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, Owner::default()).unwrap().ino;
    let link = fs.symlink(Ino::ROOT, b"link", b"target", Owner::default()).unwrap().ino;
    let mut read = Read { fs, inos: [file, dir, link] };

    // The access times are not newer than the last change, so reading updates them.
    device.clock.advance(SECOND);
    let mut last = read.moved(read.atimes());
    // They are newer than the last change and less than a day old, so they stay, to the nanosecond.
    device.clock.advance(DAY.saturating_sub(SECOND));
    assert_eq!(read.all(), last);
    device.clock.advance(SECOND);
    last = read.moved(last);
    device.clock.advance(SECOND);
    read.change();
    assert_eq!(read.atimes(), last);
    last = read.moved(last);

    // The access times survive a close.
    read.fs.close().unwrap();
    read.fs = open(MountOptions { noatime: true, ..MountOptions::default() });
    device.clock.advance(2 * DAY);
    assert_eq!(read.all(), last, "noatime");
    read.fs.close().unwrap();
    read.fs = open(MountOptions { read_only: true, ..MountOptions::default() });
    assert_eq!(read.all(), last, "read-only");
    read.fs.close().unwrap();
    read.fs = open(MountOptions::default());
    read.moved(last);
    // A removed directory that is still open gets no access time. Reading it is harmless.
    read.fs.pin(dir).unwrap();
    read.fs.rmdir(Ino::ROOT, b"dir").unwrap();
    read.fs.readdir(dir, 0, &mut |_| panic!("an entry")).unwrap();
    read.fs.unpin(dir, 1);
    read.fs.close().unwrap();
}
