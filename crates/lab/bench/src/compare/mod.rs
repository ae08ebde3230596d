//! KedgeFS compared with its peers. KedgeFS runs mounted and in process. The peers are: through the
//! same kernel interface a file system that does nothing, or only what an fsync must do; ext4, XFS
//! and Btrfs on loop devices; fuse2fs and redoxfs; tmpfs as the upper limit; and durable writes
//! alone as the limit of durable work.
//!
//! All images have the same size, are in one directory, and are written full first. The report
//! names what cannot be measured here. `page` renders it as one HTML file.

mod loads;
pub mod page;
mod root;

use crate::Settings;
use crate::bars::{Bar, Want};
use crate::contest::{Amount, Better, Contest, Contestant, Metric, Outcome, Plan, Round};
use crate::library::{Library, in_threads};
use crate::mounts::{self, Mounted};
use crate::place::{Machine, Place};
use crate::report::{Reading, Report, Section};
use crate::shell::{self, Shell};
use crate::whereabouts::{Pinned, Watch, Whereabouts};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_device::{Device, FileDevice, OpenOptions};
use kedgefs::{FormatOptions, MountOptions};
use loads::{LOADS, Load, Wanted, Work};
use root::Root;
use std::cell::RefCell;
use std::path::PathBuf;

/// The kernel's switch of FUSE over io_uring.
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// A contestant.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Peer {
    /// KedgeFS, mounted
    Kedge,
    /// The same with requests through rings of io_uring, where the kernel has them on
    Rings,
    /// An earlier version of KedgeFS, mounted: the program that `--before` names
    Before,
    /// KedgeFS, in process
    Library,
    /// A file system that does nothing, behind the same mount
    Null,
    /// The same; each fsync waits for a durable write, which others may share
    NullLog,
    Ext4,
    Ext4Fast,
    Xfs,
    Btrfs,
    Fuse2fs,
    /// Of Redox OS: where its programs are installed
    Redoxfs,
    Tmpfs,
    /// Durable writes alone
    Raw,
}

impl Peer {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Peer::Kedge => "KedgeFS",
            Peer::Rings => "KedgeFS, rings",
            Peer::Before => "KedgeFS before",
            Peer::Library => "KedgeFS in process",
            Peer::Null => "null",
            Peer::NullLog => "null with a log",
            Peer::Ext4 => "ext4",
            Peer::Ext4Fast => "ext4 fast_commit",
            Peer::Xfs => "XFS",
            Peer::Btrfs => "Btrfs",
            Peer::Fuse2fs => "fuse2fs",
            Peer::Redoxfs => "redoxfs",
            Peer::Tmpfs => "tmpfs",
            Peer::Raw => "durable writes",
        }
    }

    /// The description in reports.
    const fn is(self) -> &'static str {
        match self {
            Peer::Kedge => "mounted, defaults",
            Peer::Rings => "mounted with -o transport=io_uring",
            Peer::Before => "an earlier version, mounted, defaults",
            Peer::Library => "the library, without the kernel",
            Peer::Null => "a file system in memory behind the same mount: what the kernel's interface costs",
            Peer::NullLog => "the same; each fsync waits for a durable write, which others may share",
            Peer::Ext4Fast => "the same with -O fast_commit, which logs small commits as a few blocks",
            Peer::Ext4 | Peer::Xfs | Peer::Btrfs => "in the kernel, on a loop device",
            Peer::Fuse2fs => "ext4 in a process, mounted",
            Peer::Redoxfs => {
                "in a process, mounted; its fsync does nothing, so it has no part in what is durable"
            }
            Peer::Tmpfs => "in memory, in the kernel: the ceiling",
            Peer::Raw => "4 KiB each, nothing else: the limit of what is made durable one by one",
        }
    }

    const fn is_ours(self) -> bool {
        matches!(self, Peer::Kedge | Peer::Library)
    }

    /// Whether the contestant is only for reference: it keeps no data, or is no file system.
    const fn is_reference(self) -> bool {
        matches!(self, Peer::Null | Peer::NullLog | Peer::Tmpfs | Peer::Raw)
    }

    /// Returns the reason if the contestant cannot be measured here.
    fn missing(self, place: &Place, kedge: &std::path::Path) -> Option<String> {
        if self == Peer::Rings && !std::fs::read_to_string(RINGS).is_ok_and(|on| on.trim() == "Y") {
            return Some(format!("{RINGS} is not Y"));
        }
        let (tools, root): (&[&str], bool) = match self {
            Peer::Kedge | Peer::Rings | Peer::Before => (&["umount"], false),
            Peer::Library | Peer::Raw => (&[], false),
            Peer::Null | Peer::NullLog => return mounts::null_program(kedge).err(),
            Peer::Ext4 | Peer::Ext4Fast => (&["mkfs.ext4", "mount", "umount"], true),
            Peer::Xfs => (&["mkfs.xfs", "mount", "umount"], true),
            Peer::Btrfs => (&["mkfs.btrfs", "mount", "umount"], true),
            Peer::Fuse2fs => (&["mkfs.ext4", "fuse2fs", "umount"], true),
            Peer::Redoxfs => (&["redoxfs", "redoxfs-mkfs", "umount"], true),
            Peer::Tmpfs => (&["mount", "umount"], true),
        };
        let gone: Vec<&str> = tools.iter().filter(|tool| shell::find(tool).is_none()).copied().collect();
        match gone[..] {
            [] if root && !place.root => Some("it takes root to mount it".into()),
            [] => None,
            _ => Some(format!("{} not installed", gone.join(" and "))),
        }
    }
}

/// What a contestant works on.
enum Ground<'a> {
    Mounted(Mounted<'a>),
    Library(Reopened),
    Raw(PathBuf),
}

/// The library on an image, which can be closed and reopened.
struct Reopened {
    image: PathBuf,
    /// `None` after a failed attempt to reopen.
    library: RefCell<Option<Library>>,
}

impl Reopened {
    fn new(image: PathBuf, library: Library) -> Reopened {
        Reopened { image, library: RefCell::new(Some(library)) }
    }

    fn library(&self) -> Result<Library> {
        self.library.borrow().clone().context("the image could not be opened again")
    }

    fn reopen_cold(&self, shell: &Shell) -> Result<()> {
        let before = self.library.take().context("the image could not be opened again")?;
        before.close()?;
        // The old library keeps the image open until it is dropped.
        drop(before);
        mounts::drop_caches(shell)?;
        let device = FileDevice::open(&self.image, OpenOptions::default())?;
        self.library.replace(Some(Library::open(device, MountOptions::default())?));
        Ok(())
    }
}

impl Ground<'_> {
    fn top(&self) -> Result<Root> {
        match self {
            Ground::Mounted(mounted) => Ok(Root::Host(mounted.path())),
            Ground::Library(image) => Ok(Root::Image(image.library()?.fs().root())),
            Ground::Raw(_) => bail!("no file system"),
        }
    }

    /// The process that serves the file system; `None` if the kernel or this process does.
    fn server(&self) -> Result<Option<u32>> {
        match self {
            Ground::Mounted(mounted) => mounted.server_process(),
            Ground::Library(_) | Ground::Raw(_) => Ok(None),
        }
    }

    /// Finishes writeback, which would otherwise disturb the rounds of other contestants.
    fn settle(&self) -> Result<()> {
        match self {
            Ground::Mounted(mounted) => mounted.settle(),
            Ground::Library(image) => image.library()?.sync(),
            Ground::Raw(_) => Ok(()),
        }
    }

    /// Makes an empty directory and finishes earlier writeback.
    fn fresh(&self) -> Result<Root> {
        if let Ground::Mounted(mounted) = self {
            mounted.fresh()?;
            return self.top()?.below("work");
        }
        let top = self.top()?;
        top.remove_all("work")?;
        let work = top.make_dir("work")?;
        self.settle()?;
        Ok(work)
    }

    /// Returns the directory that an earlier round prepared, or prepares it.
    fn kept(&self, name: &str, prepare: fn(&Root, u64) -> Result<()>, items: u64) -> Result<Root> {
        let top = self.top()?;
        if !top.has_dir(name)? {
            prepare(&top.make_dir(name)?, items)?;
            self.settle()?;
        }
        top.below(name)
    }

    /// Drops all caches of the file system.
    fn cool(&self, place: &Place) -> Result<()> {
        match self {
            Ground::Mounted(mounted) => mounted.remount_cold(),
            Ground::Library(image) => image.reopen_cold(&place.shell),
            Ground::Raw(_) => bail!("no file system"),
        }
    }
}

/// Where the threads of clients and server may run. The kernel's own threads may run anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Places {
    Free,
    OneProcessor,
}

impl Places {
    fn title(self, load: &Load) -> String {
        match self {
            Places::Free => load.title.into(),
            Places::OneProcessor => format!("{}; all on one processor", load.title),
        }
    }
}

struct Compare<'a> {
    settings: &'a Settings,
    place: &'a Place,
    plan: Plan<'a>,
    /// The contestants that can be measured. A contestant that could not be made fails in each
    /// contest.
    made: Vec<(Peer, Result<Ground<'a>, String>)>,
    setup: Vec<String>,
    notes: Vec<String>,
}

/// Returns the loads whose titles contain one of these texts, or all loads if there is no text.
pub fn loads(texts: &[String]) -> Vec<&'static Load> {
    let asked =
        |load: &&Load| texts.is_empty() || texts.iter().any(|text| load.title.contains(text.as_str()));
    LOADS.iter().filter(asked).collect()
}

/// Returns the requested contestants and KedgeFS: mounted, unless only `library` is requested.
/// Without a request, returns all contestants. An earlier version takes part if there is one.
/// KedgeFS always takes part, since ratios compare the first contestant with the others, and would
/// otherwise compare peers.
pub fn contestants(asked: &[Peer], before: bool) -> Vec<Peer> {
    let ours = asked.iter().any(|peer| peer.is_ours());
    let takes_part = |peer: &Peer| match peer {
        Peer::Before => before,
        _ if asked.is_empty() => true,
        Peer::Kedge if !ours => true,
        peer => asked.contains(peer),
    };
    Peer::value_variants().iter().copied().filter(takes_part).collect()
}

/// Runs the loads and makes the report. Fails, without a report, if the directory is unusable or an
/// interrupt came.
pub fn run(settings: &Settings, peers: &[Peer], loads: &[&Load], places: &[Places]) -> Result<Report> {
    let place = Place::new(settings)?;
    let rounds = settings.rounds.unwrap_or(if settings.quick { 2 } else { 5 });
    let mut machine = Machine::look(&place)?;
    let plan = Plan { rounds, interrupt: &settings.interrupt, progress: settings.progress };
    let (made, setup, notes) = (Vec::new(), Vec::new(), Vec::new());
    let mut compare = Compare { settings, place: &place, plan, made, setup, notes };
    compare.notes.push("The images were written full before they were used.".into());
    for peer in Peer::value_variants().iter().filter(|peer| peers.contains(peer)) {
        compare.make(*peer)?;
    }
    let (mut outcomes, mut bars) = (Vec::new(), Vec::new());
    for load in loads {
        for places in places {
            let Some(outcome) = compare.hold(load, *places)? else { continue };
            if *places == Places::Free {
                let wanted = loads::ANY.iter().chain(load.wanted);
                bars.extend(wanted.filter_map(|wanted| bar(wanted, &outcome)));
            }
            outcomes.push(outcome);
        }
    }
    machine.durable_write.push(place.durable_write()?);
    let (mut failures, Compare { made, setup, mut notes, .. }) = (Vec::new(), compare);
    for (peer, ground) in made {
        let ended = match ground {
            Ok(Ground::Mounted(mounted)) => mounted.end(),
            Ok(Ground::Library(image)) => image.library().and_then(|library| library.close()),
            Ok(Ground::Raw(_)) | Err(_) => Ok(()),
        };
        failures.extend(ended.err().map(|e| format!("{}: {e:#}", peer.name())));
    }
    if place.in_memory() {
        notes.push(format!("The images are on {}, in memory: fsync costs nothing there.", place.host));
    }
    let sections =
        vec![Section { title: "KedgeFS beside its peers".into(), setup, outcomes, reading: Reading::Ratio }];
    let version = env!("CARGO_PKG_VERSION");
    Ok(Report { experiment: "compare", version, machine, rounds, sections, bars, notes, failures })
}

impl Compare<'_> {
    /// Notes each text once, even if a load is measured in several places.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            (self.settings.progress)(&note);
            self.notes.push(note);
        }
    }

    fn make(&mut self, peer: Peer) -> Result<()> {
        if let Some(why) = peer.missing(self.place, &self.settings.kedge) {
            self.note(format!("Left out: {} ({why}).", peer.name()));
            return Ok(());
        }
        let (shell, size) = (&self.place.shell, self.settings.size);
        (self.settings.progress)(&format!("making {}", peer.name()));
        let file = |name: &str| mounts::make_file(name, size, true);
        let (lines, ground) = match peer {
            Peer::Kedge => {
                (mounts::kedge_lines(size, true), Mounted::kedge(shell, size, true).map(Ground::Mounted))
            }
            Peer::Rings => (mounts::rings_lines(size), Mounted::rings(shell, size).map(Ground::Mounted)),
            Peer::Before => (mounts::before_lines(size), Mounted::before(shell, size).map(Ground::Mounted)),
            Peer::Ext4 => {
                (mounts::ext4_lines(size, true), Mounted::ext4(shell, size, true).map(Ground::Mounted))
            }
            Peer::Ext4Fast => {
                (mounts::ext4_fast_lines(size), Mounted::ext4_fast(shell, size).map(Ground::Mounted))
            }
            Peer::Xfs => {
                (mounts::xfs_lines(size, true), Mounted::xfs(shell, size, true).map(Ground::Mounted))
            }
            Peer::Btrfs => {
                (mounts::btrfs_lines(size, true), Mounted::btrfs(shell, size, true).map(Ground::Mounted))
            }
            Peer::Fuse2fs => {
                (mounts::fuse2fs_lines(size), Mounted::fuse2fs(shell, size).map(Ground::Mounted))
            }
            Peer::Redoxfs => {
                (mounts::redoxfs_lines(size), Mounted::redoxfs(shell, size).map(Ground::Mounted))
            }
            Peer::Tmpfs => (mounts::tmpfs_lines(), Mounted::tmpfs(shell).map(Ground::Mounted)),
            Peer::Null | Peer::NullLog => {
                let made = mounts::null_program(&self.settings.kedge).map_err(anyhow::Error::msg);
                let made = made.and_then(|program| match peer {
                    Peer::NullLog => Mounted::null_log(shell, &program),
                    _ => Mounted::null(shell, &program),
                });
                let lines =
                    if peer == Peer::NullLog { mounts::null_log_lines() } else { mounts::null_lines() };
                (lines, made.map(Ground::Mounted))
            }
            Peer::Library => {
                let image = shell.dir.join("library.img");
                let made = shell.run(&file("library")).and_then(|_| {
                    let device = FileDevice::open(&image, OpenOptions::default())?;
                    Library::on(device, &FormatOptions::default(), MountOptions::default())
                });
                let made = made.map(|library| Ground::Library(Reopened::new(image, library)));
                let how = "# FileDevice::open(\"library.img\"), FileSystem::format, FileSystem::open, all with defaults";
                (vec![file("library"), how.into()], made)
            }
            Peer::Raw => {
                let made = shell.run(&file("raw")).map(|_| Ground::Raw(shell.dir.join("raw.img")));
                (vec![file("raw"), "# FileDevice::open(\"raw.img\"), Device::write with FUA".into()], made)
            }
        };
        self.settings.interrupt.check()?;
        self.setup.extend(lines);
        self.made.push((peer, ground.map_err(|e| format!("{e:#}"))));
        Ok(())
    }

    /// Holds the contest of a load. Returns `None`, with a note, if its program is missing or no
    /// contestant here can run it.
    fn hold(&mut self, load: &Load, places: Places) -> Result<Option<Outcome>> {
        let takes_part =
            |wanted: fn(Peer) -> bool| self.made.iter().any(|(peer, _)| wanted(*peer) && fits(*peer, load));
        if !takes_part(|peer| peer != Peer::Raw) {
            self.note(format!("Left out: {} (none of the contestants can do it).", load.title));
            return Ok(None);
        }
        let without_ours = !takes_part(Peer::is_ours) && self.made.iter().any(|(peer, _)| peer.is_ours());
        if let Work::Tool { program, .. } = &load.work
            && shell::find(program).is_none()
        {
            self.note(format!("Left out: {} ({program} is not installed).", load.title));
            return Ok(None);
        }
        if matches!(load.work, Work::Kept { cold: true, .. }) && !self.place.root {
            self.note(format!("Left out: {} (it takes root to drop the kernel's caches).", load.title));
            return Ok(None);
        }
        if without_ours {
            self.note(format!("Without KedgeFS: {} (the library alone cannot do it).", load.title));
        }
        let seconds = if self.settings.quick { 0.3 } else { 2.0 };
        let max = (self.settings.size / load.item).max(1);
        let amount = match &load.work {
            // dbench's amount of work is given in seconds.
            Work::Tool { program: "dbench", .. } => {
                Amount::Warmed { pilot: 2, amount: if self.settings.quick { 2 } else { 10 } }
            }
            Work::Kept { .. } => Amount::Fixed(load.pilot / if self.settings.quick { 10 } else { 1 }),
            _ => Amount::Scaled { pilot: load.pilot.min(max), max, seconds },
        };
        let contestants = self.made.iter().filter(|(peer, _)| fits(*peer, load));
        let contestants = contestants.map(|(peer, ground)| {
            let place = self.place;
            Contestant::new(peer.name(), move |items| match ground {
                Ok(ground) => round(place, load, places, ground, items),
                Err(e) => bail!("{e}"),
            })
        });
        let mut metrics = vec![Metric::new("", load.unit, Better::Higher)];
        metrics.extend(SEEN.map(|(name, unit, _)| Metric::new(name, unit, Better::Neither)));
        self.plan
            .hold(Contest {
                title: places.title(load),
                metrics,
                amount,
                goal: None,
                contestants: contestants.collect(),
            })
            .map(Some)
    }
}

/// Returns the bar of a goal; `None` if KedgeFS or all contestants for the comparison are missing.
fn bar(wanted: &Wanted, outcome: &Outcome) -> Option<Bar> {
    let side = |peer: &Peer| outcome.sides.iter().position(|side| side.name == peer.name());
    let ours = side(&wanted.whose)?;
    let others: Vec<usize> = wanted.of.iter().filter_map(side).collect();
    let names: Vec<&str> = others.iter().map(|side| outcome.sides[*side].name).collect();
    let best = if names.len() > 1 { "the best of " } else { "" };
    let what = format!("{} by {best}{}", wanted.whose.name(), names.join(", "));
    let bar = Bar::new(outcome, &what, "times", Want::AtLeast(wanted.times), |at| {
        at(ours, "") / others.iter().map(|side| at(*side, "")).fold(f64::NAN, f64::max)
    });
    (!others.is_empty()).then_some(bar)
}

type Figure = fn(&Whereabouts) -> f64;

/// The metrics of a round's threads, as [`Whereabouts`] computes them.
const SEEN: [(&str, &str, Figure); 4] = [
    ("clients and server on the same processor", "%", Whereabouts::together),
    ("server", "% of a processor", Whereabouts::server_load),
    ("context switches", "/s", Whereabouts::switches),
    ("migrations", "/s", Whereabouts::migrations),
];

/// Whether the contestant can run the load.
fn fits(peer: Peer, load: &Load) -> bool {
    match peer {
        Peer::Raw => load.durable,
        Peer::Library => !matches!(load.work, Work::Tool { .. }),
        // An fsync of redoxfs returns without doing anything.
        Peer::Redoxfs => !load.durable,
        // A contestant that keeps no data cannot be read cold.
        peer if peer.is_reference() => !matches!(load.work, Work::Kept { cold: true, .. }),
        _ => true,
    }
}

fn round(place: &Place, load: &Load, places: Places, ground: &Ground<'_>, items: u64) -> Result<Round> {
    let ready = ready(place, load, ground, items)?;
    let server = ground.server()?;
    let pinned = (places == Places::OneProcessor).then(|| Pinned::new(server)).transpose()?;
    let watch = Watch::start(server)?;
    let value = work(place, load, ground, ready, items);
    let seen = watch.end();
    ground.settle()?;
    let mut command = format!("# {}: {items} {}", load.title, load.unit.trim_end_matches("/s"));
    if let Some(pinned) = pinned {
        command += &format!(", all on processor {}", pinned.cpu);
    }
    let values = [value?].into_iter().chain(SEEN.iter().map(|(_, _, of)| of(&seen))).collect();
    Ok(Round { values, command })
}

/// Prepares the directory for the work and returns it. After this the server's process stays the
/// same.
fn ready(place: &Place, load: &Load, ground: &Ground<'_>, items: u64) -> Result<Option<Root>> {
    match (ground, &load.work) {
        (Ground::Raw(_), _) => Ok(None),
        (_, Work::Calls(_) | Work::Tool { .. }) => ground.fresh().map(Some),
        (_, Work::Kept { name, prepare, cold, .. }) => {
            let kept = ground.kept(name, *prepare, items)?;
            if !cold {
                return Ok(Some(kept));
            }
            // An open directory would keep the library's image open.
            drop(kept);
            ground.cool(place)?;
            ground.top()?.below(name).map(Some)
        }
    }
}

fn work(place: &Place, load: &Load, ground: &Ground<'_>, ready: Option<Root>, items: u64) -> Result<f64> {
    if let Ground::Raw(path) = ground {
        return durable_writes(path, load.threads, items);
    }
    let root = ready.context("no file system")?;
    match (ground, &load.work) {
        (_, Work::Calls(work)) => work(&root, load.threads, items),
        (_, Work::Kept { run, cold: true, .. }) => run(&root, items),
        // The first run fills the caches of every contestant; the second one counts.
        (_, Work::Kept { run, cold: false, .. }) => run(&root, items).and_then(|_| run(&root, items)),
        (Ground::Mounted(mounted), Work::Tool { run, .. }) => {
            run(place, &format!("{}/work", mounted.name()), &root, items)
        }
        (_, Work::Tool { .. }) => bail!("a program needs a mount"),
    }
}

/// Runs as many threads as the load has. Each writes blocks of 4 KiB of its own, each of them
/// durably.
fn durable_writes(path: &std::path::Path, threads: usize, items: u64) -> Result<f64> {
    let device = FileDevice::open(path, OpenOptions::default())?;
    let each = (items / threads as u64).max(1);
    let blocks = device.geometry().size / BLOCK_SIZE as u64 / threads as u64;
    let (took, _) = in_threads(threads, |thread| {
        let device = device.clone();
        move || {
            let block = IoBuf::zeroed(1);
            (0..each).try_for_each(|i| {
                let at = (thread as u64 * blocks + i % blocks) * BLOCK_SIZE as u64;
                device.write(at, &block, true).context("write to the raw image")
            })
        }
    })?;
    Ok((each * threads as u64) as f64 / took.as_secs_f64())
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
