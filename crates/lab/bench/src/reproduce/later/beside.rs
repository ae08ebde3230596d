//! ext4's fast commits and their later improvements: what an fsync writes to the device, compared
//! with ext4 with and without fast commits. The kernel counts the writes.

use super::super::{Part, Run};
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Round};
use crate::disk::{DiskCounts, LoopDevice};
use crate::mounts::Mounted;
use crate::report::{Reading, Section};
use anyhow::{Context, Result};
use kedge_base::{Clock, SystemClock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BYTES: &str = "bytes to the device for each fsync";
const FLUSHES: &str = "flushes for each fsync";
/// Number of messages that are kept. Each new message replaces the oldest.
const KEPT: u64 = 16;
const MESSAGE: [u8; 4096] = [0x6b; 4096];
/// Bytes of the file of which random regions are overwritten, and the number of regions before an
/// fsync.
const FILE: u64 = 16 << 20;
const REGIONS: u64 = 16;
const REGION: usize = 4096;

const PEERS: [Peer; 3] = [Peer::Kedge, Peer::Ext4, Peer::Fast];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    Kedge,
    Ext4,
    Fast,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Kedge => "kedge",
            Peer::Ext4 => "ext4",
            Peer::Fast => "ext4-fast",
        }
    }

    /// The commands that make the file system on a device and mount it.
    fn lines(self, device: &str) -> Vec<String> {
        let name = self.name();
        // These options move work of the first minutes into mkfs, where it is not counted.
        let extended = "-E lazy_itable_init=0,lazy_journal_init=0";
        let (mkfs, mount) = match self {
            Peer::Kedge => (format!("kedge mkfs {device}"), format!("kedge mount {device} kedge")),
            Peer::Ext4 => (format!("mkfs.ext4 -q -F {extended} {device}"), format!("mount {device} {name}")),
            Peer::Fast => (
                format!("mkfs.ext4 -q -F -O fast_commit {extended} {device}"),
                format!("mount {device} {name}"),
            ),
        };
        vec![mkfs, format!("mkdir {name}"), mount]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    Mail,
    Regions,
}

impl Load {
    fn title(self) -> &'static str {
        match self {
            Load::Mail => "create, write 4 KiB, fsync, rename, unlink of an old one",
            Load::Regions => "16 random regions of 4 KiB overwritten, fsync",
        }
    }

    /// Does `count` fsyncs in `dir`. [`Load::prepare`] has done what precedes the first fsync.
    fn work(self, dir: &Path, count: u64) -> Result<()> {
        match self {
            Load::Mail => (0..count).try_for_each(|i| mail(dir, i)),
            Load::Regions => {
                let path = dir.join("regions");
                let file = File::options().write(true).open(&path).context("open the file")?;
                let mut rng = SmallRng::seed_from_u64(count);
                (0..count).try_for_each(|_| {
                    for _ in 0..REGIONS {
                        let at = rng.random_range(0..FILE / REGION as u64) * REGION as u64;
                        file.write_all_at(&[rng.random(); REGION], at).context("write")?;
                    }
                    file.sync_all().context("fsync")
                })
            }
        }
    }

    fn prepare(self, dir: &Path) -> Result<()> {
        if self == Load::Regions {
            std::fs::write(dir.join("regions"), vec![0x6b; FILE as usize]).context("fill the file")?;
        }
        Ok(())
    }
}

/// Delivers a message: it is durable under a temporary name before it gets its own name.
fn mail(dir: &Path, i: u64) -> Result<()> {
    let temporary = dir.join("new");
    let mut file = File::create_new(&temporary).context("create")?;
    file.write_all(&MESSAGE).and_then(|()| file.sync_all()).context("write and fsync")?;
    std::fs::rename(&temporary, dir.join(i.to_string())).context("rename")?;
    match i.checked_sub(KEPT) {
        Some(old) => std::fs::remove_file(dir.join(old.to_string())).context("unlink"),
        None => Ok(()),
    }
}

pub fn run(run: &mut Run<'_>) -> Result<()> {
    if !run.does(Part::Mount) {
        return Ok(());
    }
    if let Some(why) = LoopDevice::missing(run.place.root) {
        run.note(format!("Left out: bytes and flushes for each fsync beside ext4 ({why})."));
        return Ok(());
    }
    run.need(&["mkfs.ext4", "truncate", "mkdir", "sync"])?;
    let mut outcomes = Vec::new();
    for load in [Load::Mail, Load::Regions] {
        let place = &*run;
        let contestants =
            PEERS.map(|peer| Contestant::new(peer.name(), move |count| counted(place, peer, load, count)));
        let outcome = run.plan.hold(Contest {
            title: load.title().into(),
            metrics: metrics(),
            amount: Amount::Warmed { pilot: run.pick(50, 200), amount: run.pick(300, 3_000) },
            goal: None,
            contestants: contestants.into(),
        })?;
        run.bars.extend(bars(&outcome));
        outcomes.push(outcome);
    }
    run.sections.push(Section {
        title: "What an fsync writes, as the kernel counts it on a loop device".into(),
        setup: vec!["# A new image for each round; losetup --find --show --direct-io=on IMAGE".into()],
        outcomes,
        reading: Reading::Ratio,
    });
    Ok(())
}

/// Measures one round on a new file system.
fn counted(run: &Run<'_>, peer: Peer, load: Load, count: u64) -> Result<Round> {
    let shell = &run.place.shell;
    let disk = LoopDevice::make(shell, peer.name(), run.settings.size)?;
    let lines = peer.lines(&disk.path);
    let mounted = match peer {
        Peer::Kedge => Mounted::kedge_by(shell, &lines)?,
        Peer::Ext4 => Mounted::kernel_by(shell, "ext4", "umount ext4", &lines)?,
        Peer::Fast => Mounted::kernel_by(shell, "ext4-fast", "umount ext4-fast", &lines)?,
    };
    let dir = mounted.path().join("work");
    std::fs::create_dir(&dir).context("create a directory")?;
    load.prepare(&dir)?;
    mounted.settle()?;
    let (clock, before) = (SystemClock::default(), disk.counts()?);
    let started = clock.monotonic();
    load.work(&dir, count)?;
    let seconds = clock.since(started).as_secs_f64();
    let counts = disk.counts()?.since(before);
    mounted.end()?;
    let command = format!("{}; # {count} times: {}", lines.join("; "), load.title());
    Ok(Round { values: values(counts, count, seconds), command })
}

fn metrics() -> Vec<Metric> {
    vec![
        Metric::new(BYTES, "", Better::Lower),
        Metric::new(FLUSHES, "", Better::Lower),
        Metric::new("writes to the device for each fsync", "", Better::Lower),
        Metric::new("fsyncs", "/s", Better::Higher),
    ]
}

fn values(counts: DiskCounts, fsyncs: u64, seconds: f64) -> Vec<f64> {
    let each = fsyncs as f64;
    vec![
        counts.bytes as f64 / each,
        counts.flushes as f64 / each,
        counts.writes as f64 / each,
        each / seconds,
    ]
}

/// The bars: KedgeFS writes no more than ext4, with or without fast commits.
fn bars(outcome: &Outcome) -> Vec<Bar> {
    let mut bars = Vec::new();
    for metric in [BYTES, FLUSHES] {
        for (side, peer) in PEERS.iter().enumerate().skip(1) {
            let what = format!("{metric}, by {}'s", peer.name());
            bars.push(Bar::new(outcome, &what, "", Want::AtMost(1.0), |at| at(0, metric) / at(side, metric)));
        }
    }
    bars
}

#[cfg(test)]
#[path = "beside_tests.rs"]
mod tests;
