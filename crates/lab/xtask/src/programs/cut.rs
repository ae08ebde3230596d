//! Replays a row on the kernel's file systems, as root: the program runs on a mount of a recorded
//! device, the power of that device is cut, and the check runs on the content that the kernel
//! mounts afterwards.
//!
//! The file systems have their default mount options. In the first try the program has ext4 to
//! itself: what is in memory reaches the device only by the program's own calls, or at the end. In
//! the second try another process, the neighbour, constantly calls fsync. That commits the journal
//! of ext4 and with it the names and sizes of all files, but not always their bytes. The third try
//! does the same on XFS. Unlike ext4, XFS does not write the bytes of a file that is renamed over
//! another one.

use super::needs::Need;
use super::rows::Row;
use super::{Suite, states_in, text};
use anyhow::{Context, Result, bail};
use std::process::Output;

/// File system, size of the device, and whether there is a neighbour. XFS has the smallest size
/// that `mkfs.xfs` accepts.
const TRIES: [(&str, &str, bool); 3] = [("ext4", "96M", false), ("ext4", "96M", true), ("xfs", "300M", true)];
/// The programs that make the file systems of [`TRIES`].
const NEEDS: [Need; 2] = [Need::Debian("mkfs.ext4", "e2fsprogs"), Need::Debian("mkfs.xfs", "xfsprogs")];
/// States of the device that each try checks, unless the row gives another number.
pub(super) const STATES: u32 = 40;
/// The device model: flushes work and sectors are not torn, as any disk in use promises.
const MODEL: &str = "disk-4k";

/// Prefix of the table cell if a state of a real file system fails.
pub(super) const FAILS: &str = "fails on";

/// Words with which `unshare` runs a script in a mount namespace of its own. A namespace that
/// another process creates meanwhile would otherwise keep the file system mounted: umount would not
/// write it, and the file of the image would be incomplete.
const ALONE: [&str; 5] = ["--mount", "--propagation", "private", "sh", "-c"];
/// Makes the file system, with the program's initial content in `d`.
const MAKE: &str = r#"set -e
cd "$PROGRAM_TEMP"; rm -f base; truncate -s "$SIZE" base; 
case "$1" in ext4) mkfs.ext4 -q -F base ;; xfs) mkfs.xfs -q -f base ;; esac
mkdir -p base-mount; mount -o loop base base-mount
cp -a "$PROGRAM_FROM" base-mount/d; touch base-mount/other; chmod --reference="$PROGRAM_FROM" base-mount/d
umount base-mount"#;

/// Runs the program on the device. The neighbour ends when the program has ended.
const RUN: &str = r#"mkdir -p "$PROGRAM_TEMP/m"; mount "$KEDGE_CRASH_DEVICE" "$PROGRAM_TEMP/m" || exit 9
export KEDGE_DIR="$PROGRAM_TEMP/m/d"
neighbour() { while test ! -e "$PROGRAM_TEMP/end"; do echo x > "$PROGRAM_TEMP/m/other"; sync "$PROGRAM_TEMP/m/other"; done; }
rm -f "$PROGRAM_TEMP/end"
test "$NEIGHBOUR" = 0 || neighbour > /dev/null &
sh "$@"; code=$?
touch "$PROGRAM_TEMP/end"; wait
cd /; umount "$PROGRAM_TEMP/m" || exit 9
exit $code"#;

/// Mounts a state and runs the check. A mount that fails is a fault of the file system and not of
/// the program, so it has a message of its own. Two states are checked at a time, and XFS does not
/// mount two file systems with one UUID without `nouuid`. A program that starts in an empty
/// directory has nothing to lose before its first promise.
const CHECK: &str = r#"test "$FROM_EMPTY$KEDGE_ACKED_COUNT" = 10 && exit 0
mkdir m; mount $OPTIONS "$KEDGE_CRASH_DEVICE" m || { echo "NOT MOUNTED"; exit 1; }
cd m/d; export KEDGE_DIR="$PWD"; ( eval "$HUNT_CHECK" ); code=$?
cd ../..; umount m || { sleep 1; umount m || echo "NOT UNMOUNTED"; }; exit $code"#;

impl Suite {
    /// Returns [`FAILS`] and the try that failed, or what the replay did not show.
    pub(super) fn cut(&self, row: &Row, check: &str, states: u32) -> Result<String> {
        if !rustix::process::geteuid().is_root() {
            return Ok("not replayed: it needs root".to_owned());
        }
        for need in NEEDS {
            self.cache.get(need).context("the replay lacks a program")?;
        }
        let mut tried = 0;
        for (kind, size, has_neighbour) in TRIES {
            let report = self.cut_once(row, check, states, kind, size, has_neighbour)?;
            let place = format!("{kind}, {}", if has_neighbour { "with a neighbour" } else { "alone" });
            let (code, report) = (report.status.code(), text(&report));
            self.save_report(row, &place.replace(", ", "-").replace(' ', "-"), &report)?;
            if report.contains("NOT MOUNTED") {
                bail!("{kind} did not mount a state: {report}");
            }
            match code {
                Some(0) => tried += states_in(&report).unwrap_or(0),
                Some(1 | 4) => return Ok(format!("{FAILS} {place}")),
                _ => return Ok(format!("no verdict on {place}")),
            }
        }
        Ok(format!("none of {tried} states fails"))
    }

    fn cut_once(
        &self,
        row: &Row,
        check: &str,
        states: u32,
        kind: &str,
        size: &str,
        has_neighbour: bool,
    ) -> Result<Output> {
        let run = |command: &mut std::process::Command| command.output().context("start the replay");
        let made = run(self.command("unshare").args(ALONE).args([MAKE, "sh", kind]).env("SIZE", size))?;
        if !made.status.success() {
            bail!("no {kind} for the replay: {}", text(&made));
        }
        let (script, args) = row.run.split_first().context("a script")?;
        let recording = self.temp.join("device.kcr");
        let recorded = run(self
            .command(&self.kedge)
            .args(["crash", "record", "--ack", "^ack", "--timeout", "5m", "--device", size, "--from"])
            .arg(self.temp.join("base"))
            .arg("-o")
            .arg(&recording)
            .args(["--", "sh", "-c", RUN, "sh"])
            .arg(self.dir.join(script))
            .args(args)
            .env("NEIGHBOUR", if has_neighbour { "1" } else { "0" }))?;
        if !recorded.status.success() {
            bail!("not recorded on {kind}: {}", text(&recorded));
        }
        run(self
            .command(&self.kedge)
            .args(["crash", "explore", "--quiet", "--timeout", "1m", "--explain", "0", "--loop"])
            .args([
                "--max-failures",
                "1",
                "--budget",
                &states.to_string(),
                "--model",
                MODEL,
                "--check",
                CHECK,
            ])
            .arg(&recording)
            .env("HUNT_CHECK", check)
            .env("OPTIONS", if kind == "xfs" { "-o nouuid" } else { "" })
            .env("FROM_EMPTY", if row.prepare.is_none() { "1" } else { "" }))
    }
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
