//! The foreign programs and libraries that rows need. They are found or installed; otherwise the
//! row is skipped, and the run reports that.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program and its Debian package. The program may be only in `sbin` or in a versioned
    /// directory.
    Debian(&'static str, &'static str),
    /// A module of Python, and its package.
    Python(&'static str, &'static str),
    /// A program in Go, built from a directory of `programs/`.
    Go(&'static str),
    /// A crate, built from a directory of `programs/`.
    Rust(&'static str),
    /// A directory of `programs/` whose `get.sh` fetches packages and builds what it needs.
    Script(&'static str),
    /// The row must run as root, since it switches to another user.
    Root,
}

/// The directory that is kept between runs of xtask.
pub struct Cache {
    scripts: PathBuf,
    dir: PathBuf,
}

fn output(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {}", command.get_program(), text.trim());
    Ok(())
}

fn is_program(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = |dir: &str| Path::new(dir).join(name).exists();
    name.starts_with('/') && Path::new(name).exists() || path.split(':').any(is_there)
}

impl Cache {
    pub fn new(scripts: &Path, target: &Path) -> Result<Cache> {
        let dir = target.join("crash-programs");
        std::fs::create_dir_all(dir.join("bin")).with_context(|| format!("create {}", dir.display()))?;
        Ok(Cache { scripts: scripts.to_owned(), dir })
    }

    /// The directory of programs that were built.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// The directory of Python modules.
    pub fn python(&self) -> PathBuf {
        self.dir.join("python")
    }

    /// The directory of the reports of `--hunt`.
    pub fn reports(&self) -> PathBuf {
        self.dir.join("hunt")
    }

    pub fn get(&self, need: Need) -> Result<()> {
        match need {
            Need::Root if rustix::process::geteuid().is_root() => Ok(()),
            Need::Root => bail!("it needs root"),
            Need::Debian(program, _) if is_program(program) => Ok(()),
            Need::Debian(program, package) => {
                ensure!(
                    rustix::process::geteuid().is_root(),
                    "{program} is missing: apt-get install {package} as root"
                );
                // Another process may be installing packages. apt waits up to 5 minutes for its
                // lock.
                let words = ["-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q"];
                let words = words.into_iter().chain(["--no-install-recommends", package]);
                output(Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive"))?;
                ensure!(is_program(program), "{package} was installed and has no {program}");
                Ok(())
            }
            Need::Python(module, package) => {
                let import = format!("import {module}");
                let probe =
                    || output(Command::new("python3").args(["-c", &import]).env("PYTHONPATH", self.python()));
                if probe().is_ok() {
                    return Ok(());
                }
                let words = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--target"];
                output(Command::new("python3").args(words).arg(self.python()).arg(package))?;
                probe()
            }
            Need::Go(dir) => output(
                Command::new("go")
                    .args(["build", "-mod=mod", "-o"])
                    .arg(self.bin().join(dir))
                    .arg(".")
                    .current_dir(self.copy(dir)?),
            ),
            // The script puts programs into `$BIN`. In its working directory it keeps what it need
            // not fetch again.
            Need::Script(dir) => {
                output(Command::new("sh").arg("get.sh").env("BIN", self.bin()).current_dir(self.copy(dir)?))
            }
            Need::Rust(dir) => {
                let target = self.dir.join("rust-target");
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                output(
                    Command::new(cargo)
                        .args(["build", "--quiet", "--release"])
                        .env("CARGO_TARGET_DIR", &target)
                        .current_dir(self.copy(dir)?),
                )?;
                let built = target.join("release/crash-stores");
                let to = self.bin().join("crash-stores");
                std::fs::copy(&built, &to).with_context(|| format!("copy {}", built.display())).map(drop)
            }
        }
    }

    /// Copies the sources to the cache, since building writes lock files beside them.
    fn copy(&self, dir: &str) -> Result<PathBuf> {
        let to = self.dir.join("src");
        std::fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
        output(Command::new("cp").arg("-rT").arg(self.scripts.join(dir)).arg(to.join(dir)))?;
        Ok(to.join(dir))
    }
}
