//! The replay of a row on ext4 itself, as root: the program runs on a kernel's mount of a recorded
//! device, the power of that device is cut, and the check runs on what the kernel then mounts.
//!
//! The default mount options are used. The first try has the file system to itself: what ext4 has
//! in memory reaches the disk with the program's own calls, or at the end. In the second try
//! another process calls fsync now and then, as on any machine; that commits ext4's journal and
//! with it the names and sizes of all files, but not always their bytes.

use super::rows::Row;
use super::{Suite, hunt, text};
use anyhow::{Context, Result, bail};
use std::process::Output;

/// Enough for the largest of the programs, and for the journal.
const SIZE: &str = "96M";
/// States of the device for each try.
const STATES: &str = "60";
/// Cache barriers work and sectors are not torn: what any disk in use promises.
const MODEL: &str = "disk-4k";

/// Makes the file system, with the program's initial content in `d`.
const MAKE: &str = r#"set -e
cd "$PROGRAM_TEMP"; rm -f base; truncate -s "$SIZE" base; mkfs.ext4 -q -F base
mkdir -p base-mount; mount -o loop base base-mount
cp -a "$PROGRAM_FROM" base-mount/d; touch base-mount/other; chmod --reference="$PROGRAM_FROM" base-mount/d
umount base-mount"#;

/// Runs the program on the device. The neighbour ends with the mount namespace's command.
const RUN: &str = r#"mkdir -p "$PROGRAM_TEMP/m"; mount "$KEDGE_CRASH_DEVICE" "$PROGRAM_TEMP/m" || exit 9
export KEDGE_DIR="$PROGRAM_TEMP/m/d"
neighbour() { while test ! -e "$PROGRAM_TEMP/end"; do echo x > "$PROGRAM_TEMP/m/other"; sync "$PROGRAM_TEMP/m/other"; sleep 0.03; done; }
rm -f "$PROGRAM_TEMP/end"
test "$NEIGHBOUR" = 0 || neighbour > /dev/null &
sh "$@"; code=$?
touch "$PROGRAM_TEMP/end"; wait
cd /; umount "$PROGRAM_TEMP/m" || exit 9
exit $code"#;

/// A mount that fails is a fault of the file system and not of the program: it is named apart.
const CHECK: &str = r#"mkdir m; mount "$KEDGE_CRASH_DEVICE" m || { echo "NOT MOUNTED"; exit 1; }
cd m/d; export KEDGE_DIR="$PWD"; ( eval "$HUNT_CHECK" ); code=$?
cd ../..; umount m || { sleep 1; umount m || echo "NOT UNMOUNTED"; }; exit $code"#;

impl Suite {
    /// `fails …`, or what the replay did not show.
    pub(super) fn cut(&self, row: &Row, check: &str) -> Result<String> {
        if !rustix::process::geteuid().is_root() {
            return Ok("not replayed: it needs root".to_owned());
        }
        let mut tried = 0;
        for (neighbour, name) in [("0", "alone"), ("1", "with a neighbour")] {
            let report = self.cut_once(row, check, neighbour)?;
            self.save_report(row, &format!("device-{neighbour}"), &text(&report))?;
            let report = (report.status.code(), text(&report));
            if report.1.contains("NOT MOUNTED") {
                bail!("ext4 did not mount a state: {}", report.1);
            }
            let states = hunt::states_in(&report.1).unwrap_or(0);
            match report.0 {
                Some(0) => tried += states,
                Some(1 | 4) => return Ok(format!("fails {name}")),
                _ => return Ok(format!("no verdict {name}")),
            }
        }
        Ok(format!("passes in {tried} states"))
    }

    fn cut_once(&self, row: &Row, check: &str, neighbour: &str) -> Result<Output> {
        let run = |command: &mut std::process::Command| command.output().context("start the replay");
        let made = run(self.command("sh").args(["-c", MAKE]).env("SIZE", SIZE))?;
        if !made.status.success() {
            bail!("no ext4 for the replay: {}", text(&made));
        }
        let (script, args) = row.run.split_first().context("a script")?;
        let recording = self.temp.join("device.kcr");
        let recorded = run(self
            .command(&self.kedge)
            .args(["crash", "record", "--ack", "^ack", "--timeout", "5m", "--device", SIZE, "--from"])
            .arg(self.temp.join("base"))
            .arg("-o")
            .arg(&recording)
            .args(["--", "sh", "-c", RUN, "sh"])
            .arg(self.dir.join(script))
            .args(args)
            .env("NEIGHBOUR", neighbour))?;
        if !recorded.status.success() {
            bail!("not recorded on ext4: {}", text(&recorded));
        }
        run(self
            .command(&self.kedge)
            .args(["crash", "explore", "--quiet", "--timeout", "1m", "--explain", "0", "--loop"])
            .args(["--max-failures", "1", "--budget", STATES, "--model", MODEL, "--check", CHECK])
            .arg(&recording)
            .env("HUNT_CHECK", check))
    }
}
