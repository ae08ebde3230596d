//! `kedge daemon`: one process that serves several images.

use anyhow::Result;
use kedge_host::daemon;
use kedge_transfer::online::server;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Started by `kedge mount --daemon`: listens under this name, and ends when nothing is mounted
    #[arg(long, hide = true, conflicts_with = "file", required_unless_present = "file")]
    name: Option<String>,
    /// The mounts, in TOML: `name`, `dirty_background`, `dirty_hard`, and for each mount a table
    /// `[[mount]]` with `image`, `dir`, `options`, `cache_size`
    file: Option<PathBuf>,
}

impl Args {
    /// Whether the standard error of this process goes to no terminal or file.
    pub fn is_in_background(&self) -> bool {
        self.name.is_some()
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(name) = &args.name {
        return daemon::run_named(name, server::offer);
    }
    let file = args.file.as_deref().expect("clap wants one of the two");
    daemon::run_file(file, server::offer)
}
