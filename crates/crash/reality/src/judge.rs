//! The judge is the running kernel: it mounts each crash state of the device, and its tree is
//! looked up among those that the model allows.

use crate::device::{DISK, Kind, run};
use crate::workload::Workload;
use anyhow::{Context, Result, bail};
use kedge_crash::edit::{Edit, Meta, Slice};
use kedge_crash::page::{Digest, PAGE};
use kedge_crash::state::{Body, ROOT};
use kedge_crash::{Case, Checker, History, Model, State, Verdict};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// For each number of completed steps, the trees that the model allows while the next step is in
/// progress.
pub struct Allowed {
    after: Vec<HashSet<Digest>>,
}

impl Allowed {
    pub fn new(workload: &Workload, model: Model) -> Result<Allowed> {
        let (trace, points) = workload.trace()?;
        let history = History::new(&trace, model);
        let mut every: BTreeMap<u32, HashSet<Digest>> = BTreeMap::new();
        let (first, last) = (points.first().copied().unwrap_or(0), points.last().copied().unwrap_or(0));
        for point in first..=last {
            let found = history.every(point);
            if found.is_cut {
                bail!("too many states under {} to list them all: {workload}", model.name);
            }
            every.insert(point, found.states);
        }
        // A step may be several events, as a write with O_DSYNC is.
        let after = points.iter().enumerate().map(|(done, point)| {
            let next = points.get(done + 1).unwrap_or(point);
            every.range(point..=next).flat_map(|(_, states)| states.iter().copied()).collect()
        });
        Ok(Allowed { after: after.collect() })
    }

    pub fn has(&self, done: usize, state: Digest) -> bool {
        self.after.get(done).is_some_and(|states| states.contains(&state))
    }

    /// The distinct trees allowed at any time.
    pub fn trees(&self) -> HashSet<Digest> {
        self.after.iter().flatten().copied().collect()
    }
}

/// A tree that the kernel showed and the model forbids.
#[derive(Clone, Debug)]
pub struct Strange {
    /// The recipe of the device's state, as `replay` accepts it.
    pub recipe: String,
    pub done: usize,
    pub shown: String,
}

/// What the kernel showed in all mounts.
#[derive(Default)]
pub struct Shown {
    pub mounts: u64,
    pub trees: HashSet<Digest>,
    pub strange: BTreeMap<(usize, Digest), Strange>,
    /// Mount errors of states without a torn block, and the number of mount errors of other states.
    /// File systems may rely on atomic writes of blocks.
    pub unmountable: Vec<String>,
    pub torn_unmountable: u64,
}

pub struct Judge<'a> {
    pub kind: Kind,
    pub allowed: &'a Allowed,
    /// The directory for devices and mount points.
    pub temp: PathBuf,
    /// The directory to which devices that showed a forbidden tree are copied.
    pub keep: Option<PathBuf>,
    pub shown: Mutex<Shown>,
}

impl Judge<'_> {
    fn look(&self, case: &Case<'_>) -> Result<()> {
        let (disk, mount) = (self.temp.join(DISK), self.temp.join("mount"));
        lay_out(case.state, &disk)?;
        let mounted = self.kind.mount_again(&disk, &mount);
        let mut shown = self.shown.lock();
        shown.mounts += 1;
        if let Err(e) = mounted {
            match case.recipe.torn {
                Some(_) => shown.torn_unmountable += 1,
                None => shown.unmountable.push(format!("{}: {e:#}", case.recipe)),
            }
            return Ok(());
        }
        let seen = observe(&mount.join("w"));
        run("umount", &[mount.to_str().context("a temporary path that is not UTF-8")?])?;
        let seen = seen?;
        let (done, digest) = (case.told.len(), seen.digest());
        shown.trees.insert(digest);
        if !self.allowed.has(done, digest) {
            let strange = Strange { recipe: case.recipe.to_string(), done, shown: describe(&seen) };
            if let Some(keep) = self.keep.as_ref().filter(|_| !shown.strange.contains_key(&(done, digest))) {
                lay_out(case.state, &keep.join(format!("{}-{}.img", self.kind.name, case.recipe)))?;
            }
            shown.strange.entry((done, digest)).or_insert(strange);
        }
        Ok(())
    }
}

impl Checker for Judge<'_> {
    fn check(&self, case: &Case<'_>) -> Verdict {
        // Accept the state here. All observations are judged together at the end, since no single
        // state of the device is wrong by itself.
        match self.look(case) {
            Ok(()) => Verdict::Good,
            Err(e) => Verdict::Broken(format!("{}: {e:#}", case.recipe)),
        }
    }
}

/// Writes the contents of the device's backing file after the crash.
fn lay_out(state: &State, disk: &Path) -> Result<()> {
    let (_, node) = state.find(DISK.as_bytes()).context("the recording has no device")?;
    let Body::File(body) = &node.body else { bail!("the device is no file") };
    // Make a new file each time: the last mount has changed the last file.
    let file = File::create(disk)?;
    file.set_len(body.size)?;
    for (at, bytes) in body.pieces().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0)) {
        file.write_all_at(bytes, at)?;
    }
    Ok(())
}

/// Reads a real tree into a state of the models.
pub fn observe(dir: &Path) -> Result<State> {
    let mut state = State::default();
    let mut inodes = HashMap::new();
    let meta = fs::symlink_metadata(dir).with_context(|| dir.display().to_string())?;
    add_inode(&mut state, ROOT, dir, &meta)?;
    observe_below(&mut state, &mut inodes, dir, ROOT)?;
    Ok(state)
}

fn observe_below(state: &mut State, inodes: &mut HashMap<u64, u64>, dir: &Path, number: u64) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let (path, meta) = (entry.path(), entry.metadata()?);
        let next = inodes.len() as u64 + ROOT + 1;
        let ino = *inodes.entry(meta.ino()).or_insert(next);
        if ino == next {
            add_inode(state, ino, &path, &meta)?;
        }
        state.apply(&Edit::Add { dir: number, name: Arc::from(entry.file_name().as_bytes()), ino });
        if meta.is_dir() {
            observe_below(state, inodes, &path, ino)?;
        }
    }
    Ok(())
}

fn add_inode(state: &mut State, ino: u64, path: &Path, meta: &Metadata) -> Result<()> {
    let target = match meta.is_symlink() {
        true => Some(Arc::from(fs::read_link(path)?.as_os_str().as_bytes())),
        false => None,
    };
    let own = Meta { mode: meta.mode(), uid: meta.uid(), gid: meta.gid() };
    state.apply(&Edit::Inode { ino, meta: own, target });
    if meta.is_file() {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        for (page, part) in bytes.chunks(PAGE).enumerate() {
            let bytes = Slice { of: Arc::from(part), range: 0..part.len() as u32 };
            state.apply(&Edit::Data { ino, page: page as u64, at: 0, bytes, whole: None });
        }
        state.apply(&Edit::Grow { ino, size: bytes.len() as u64 });
    }
    Ok(())
}

/// Describes a tree in one line: `f: 100×A 20×0; d/`.
pub fn describe(state: &State) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut paths: HashMap<u64, String> = HashMap::new();
    state.walk(&mut |path, ino, node| {
        let path = String::from_utf8_lossy(path).into_owned();
        let what = match (&node.body, paths.get(&ino)) {
            (_, Some(first)) => format!("{path} is {first}"),
            (Body::File(_), None) => {
                let bytes = state.content(path.as_bytes()).unwrap_or_default();
                format!("{path}: {}", runs(&bytes))
            }
            (Body::Dir(_), None) => format!("{path}/"),
            _ => format!("{path}: another type"),
        };
        if ino != ROOT {
            names.push(what);
            paths.entry(ino).or_insert(path);
        }
    });
    if names.is_empty() { "nothing".to_owned() } else { names.join("; ") }
}

fn runs(bytes: &[u8]) -> String {
    let runs: Vec<String> = bytes
        .chunk_by(|a, b| a == b)
        .map(|run| format!("{}×{}", run.len(), if run[0] == 0 { '0' } else { char::from(run[0]) }))
        .collect();
    if runs.is_empty() { "empty".to_owned() } else { runs.join(" ") }
}
