//! States what a program can serve, so that a keeper can refuse a program that does not fit.

use anyhow::{Context, Result, bail, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_format::superblock::{Geometry, INCOMPAT_KNOWN, RO_COMPAT_KNOWN};
use kedge_fuse::keep::area::VERSION as MEMORY;
use rustix::fd::AsRawFd;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The version of the protocol between keeper and server: `--kept`, and the lines in
/// [`crate::kept_server`].
const PROTOCOL: u32 = 2;
/// The version of additions to the protocol that older programs lack. 1: the key of an encrypted
/// image, options that a remount has changed, a freeze.
const KNOWS: u32 = 1;
/// The hidden subcommand that prints the [`Offer`] of a program.
pub const OFFER: &str = "server-offer";

/// Limit for the bytes read from the memory that receives a program's output.
const OFFER_MAX: u64 = 4096;
const OFFER_WAIT: Duration = Duration::from_secs(10);
const OFFER_PAUSE: Duration = Duration::from_millis(5);

/// The mounts that a program can serve.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Offer {
    version: String,
    /// The program's [`PROTOCOL`].
    protocol: u32,
    /// The layout version of the keeper's memory.
    memory: u32,
    incompat: u64,
    ro_compat: u64,
    /// The program's [`KNOWS`].
    #[serde(default)]
    knows: u32,
}

impl Offer {
    /// The offer of this program.
    pub fn own() -> Offer {
        Offer {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            memory: MEMORY,
            incompat: INCOMPAT_KNOWN,
            ro_compat: RO_COMPAT_KNOWN,
            knows: KNOWS,
        }
    }

    /// Refuses a program that cannot serve this image for a keeper that offers `own`. `special`
    /// names a property of the mount that only programs with [`KNOWS`] can serve.
    pub(crate) fn check(&self, own: &Offer, image: &Geometry, special: Option<&str>) -> Result<()> {
        let same = [
            ("keepers of protocol", self.protocol, own.protocol),
            ("a keeper's memory of layout", self.memory, own.memory),
        ];
        for (what, theirs, ours) in same {
            ensure!(
                theirs == ours,
                "version {} serves {what} {theirs}, and the keeper of this mount, version {}, has {ours}; an \
                 unmount and a mount are needed",
                self.version,
                own.version
            );
        }
        if let Some(special) = special.filter(|_| self.knows < KNOWS) {
            bail!("version {} cannot serve {special} for a keeper", self.version);
        }
        let unknown = [image.feature_incompat & !self.incompat, image.feature_ro_compat & !self.ro_compat];
        ensure!(
            unknown == [0, 0],
            "version {} does not know features of the image (incompat {:#x}, ro_compat {:#x})",
            self.version,
            unknown[0],
            unknown[1]
        );
        Ok(())
    }
}

/// A program that can be started as a server.
pub(crate) struct Program {
    /// The open program file; `None` for the program of this process.
    file: Option<File>,
    version: String,
}

impl Program {
    pub(crate) fn own() -> Program {
        Program { file: None, version: Offer::own().version }
    }

    /// Opens a program, and runs it to find out what it can serve.
    pub(crate) fn open(path: &Path) -> Result<(Program, Offer)> {
        ensure!(path.is_absolute(), "{}: the path is not absolute", path.display());
        let named = || format!("open the program {}", path.display());
        // Without O_NONBLOCK, opening a pipe would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = file.with_context(named)?;
        let meta = file.metadata().with_context(named)?;
        ensure!(meta.is_file(), "{} is no regular file", path.display());
        ensure!(meta.permissions().mode() & 0o111 != 0, "{} is not executable", path.display());
        let mut program = Program { file: Some(file), version: String::new() };
        let offer = program.offer().with_context(|| format!("ask {} what it can serve", path.display()))?;
        program.version.clone_from(&offer.version);
        Ok((program, offer))
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// A command that runs the opened file, even if its path names another file by now.
    pub(crate) fn command(&self) -> Command {
        let path = match &self.file {
            // This path runs the binary of this process even if its file has been replaced or
            // deleted.
            None => PathBuf::from("/proc/self/exe"),
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
        };
        let mut command = Command::new(path);
        command.arg0("kedge");
        command
    }

    fn offer(&self) -> Result<Offer> {
        let said = File::from(rustix::fs::memfd_create("kedge-offer", MemfdFlags::CLOEXEC)?);
        let mut command = self.command();
        command.arg(OFFER).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(Stdio::null());
        let mut child = command.spawn().context("run it")?;
        let clock = SystemClock::default();
        let begun = clock.monotonic();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if clock.since(begun) > OFFER_WAIT => {
                    child.kill()?;
                    child.wait()?;
                    bail!("it does not end within {} seconds", OFFER_WAIT.as_secs());
                }
                None => clock.sleep(OFFER_PAUSE),
            }
        };
        ensure!(status.success(), "it is no kedge that can take a mount over ({status})");
        let len = said.metadata()?.len();
        ensure!(len <= OFFER_MAX, "it printed {len} bytes");
        let mut text = vec![0; len as usize];
        said.read_exact_at(&mut text, 0)?;
        serde_json::from_slice(&text).context("it is no kedge that can take a mount over")
    }
}
