//! `kedge`: the command line of KedgeFS.
//!
//! # Exit codes
//! 0 success · 1 failure · 2 usage. `fsck` and `scrub` follow fsck(8): 0 clean, 1 fixed, 4 errors
//! left, 8 operational error, 16 usage. `diff` follows diff(1): 0 same, 1 differ, 2 error. An error
//! is one line on stderr that starts with `kedge:` and names what failed and where.
//!
//! # Shape
//! There is one module for each subcommand, or for two that are opposites (`freeze` and thaw). The
//! other modules parse or print what several subcommands share (`mode`, `places`, `report`,
//! `summary`), serve the counters (`listen`) or make the man pages (`manual`). Modules open, mount
//! and check images only through [`kedge_host::engine`]. Only `dump`, `tune` and `upgrade` know the
//! format of an image; the others know at most its sizes and its contents.
#![deny(unsafe_code)]

mod cat;
mod cp;
mod crash;
mod daemon;
mod diff;
mod dump;
mod find;
mod fork;
mod freeze;
mod fsck;
mod image;
mod info;
mod install;
mod key;
mod limit;
mod listen;
mod ls;
mod manual;
mod mkdir;
mod mkfs;
mod mode;
mod mount;
mod nfs;
mod places;
mod remount;
mod report;
mod resize;
mod rm;
mod scrub;
mod send;
mod serve;
mod snapshot;
mod stat;
mod stats;
mod summary;
mod tar;
mod top;
mod trim;
mod tune;
mod umount;
mod upgrade;
mod upgrade_server;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use kedge_host::text::one_line;
use kedge_host::{Usage, key as host_key, logging};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit codes that are neither fsck's nor scrub's.
const FAILURE: u8 = 1;
const USAGE: u8 = 2;

const BENCH_MOVED: &str = "experiments are in a separate program: kedge-lab bench …, kedge-lab reproduce …";

#[derive(Parser, Debug)]
#[command(
    name = "kedge",
    version,
    about = "KedgeFS, a crash-consistent journaling file system in user space"
)]
struct Cli {
    /// The file that holds the key of an encrypted image, to its last byte. Without a key the
    /// passphrase is asked for
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "key_fd")]
    key_file: Option<PathBuf>,
    /// The number of an open file that holds the key
    #[arg(long, global = true, value_name = "N")]
    key_fd: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make an image
    Mkfs(mkfs::Args),
    /// Mount an image on a directory
    Mount(mount::Args),
    /// Serve several images in one process, in the foreground
    Daemon(daemon::Args),
    /// Serve an image through another door than a mount
    Serve(serve::Args),
    /// Change options of a mount
    Remount(remount::Args),
    /// Unmount, and return when everything is on the device
    Umount(umount::Args),
    /// Have this program serve mounts that have a keeper, without an unmount
    UpgradeServer(upgrade_server::Args),
    /// Run by a keeper: prints what this program can serve
    #[command(hide = true, name = kedge_host::offer::OFFER)]
    ServerOffer,
    /// Run by a server: sends notifications to the kernel
    #[command(hide = true, name = kedge_host::courier::COURIER)]
    Courier {
        #[arg(long)]
        kept: bool,
    },
    /// Give free space back to the device, or to the host of an image file
    Trim(trim::Args),
    /// Stop all changes of a mount, so that its image can be copied
    Freeze(freeze::FreezeArgs),
    /// End a freeze
    Thaw(freeze::ThawArgs),
    /// Check an image, and optionally repair it
    Fsck(fsck::Args),
    /// Read and verify everything that has a checksum, even while the image is mounted
    Scrub(scrub::Args),
    /// Change the label of an image that is not mounted
    Tune(tune::Args),
    /// Give an image of an older version what new images have, as far as that is possible in place
    Upgrade(upgrade::Args),
    /// Make an image larger or smaller, also while it is mounted
    Resize(resize::Args),
    /// Make a writable copy of a tree at once, which shares all blocks with it
    Fork(fork::Args),
    /// Make, list, rename and delete forks that cannot be changed
    Snapshot(snapshot::Args),
    /// Show what differs between two trees, mounted or not
    Diff(diff::Args),
    /// Write a snapshot to standard output, whole or as the difference from an older one
    Send(send::SendArgs),
    /// Make a snapshot of what `kedge send` has written
    Receive(send::ReceiveArgs),
    /// Limit the bytes and files of a directory and all below it, or show its limit
    Limit(limit::Args),
    /// Show and change the keys of an encrypted image that is not mounted
    Key(key::Args),
    /// Show identity, geometry and state of an image or of a mount
    Info(info::Args),
    /// Show the counters of a live mount
    Stats(stats::Args),
    /// Show the activity of a live mount as figures of the last second
    Top(top::Args),
    /// Show the structures of an image
    Dump(dump::Args),
    /// Copy the metadata of an image for the report of a bug, without file data
    Image(image::Args),
    /// List a directory of an image that is not mounted
    Ls(ls::Args),
    /// Print files of an image that is not mounted
    Cat(cat::Args),
    /// Show all that is known of a file of an image that is not mounted
    Stat(stat::Args),
    /// List all paths below a directory of an image that is not mounted
    Find(find::Args),
    /// Make a directory in an image that is not mounted
    Mkdir(mkdir::Args),
    /// Remove a file or a directory from an image that is not mounted
    Rm(rm::Args),
    /// Copy files between this machine and images that are not mounted
    Cp(cp::Args),
    /// A tar archive from or into a directory of an image that is not mounted
    Tar(tar::Args),
    /// Install this program, its helpers for mount(8), man pages, completions and units
    InstallHelpers(install::Args),
    /// Moved to kedge-lab
    #[command(hide = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _words: Vec<OsString>,
    },
    /// Crash-test a program: show what it would find after a power failure
    Crash(crash::Args),
}

/// The command from which `--help`, the man pages and the completions are made.
fn command() -> clap::Command {
    Cli::command()
}

fn main() -> ExitCode {
    let args = with_subcommand(std::env::args_os().collect());
    let is_fsck = args.get(1).is_some_and(|a| a == "fsck" || a == "scrub");
    let usage_code = if is_fsck { fsck::USAGE } else { USAGE };
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand || !e.use_stderr() => {
            let code = if e.use_stderr() { usage_code } else { 0 };
            return ExitCode::from(if e.print().is_ok() { code } else { FAILURE });
        }
        Err(e) => {
            eprintln!("kedge: {} (see {})", one_line(&first_paragraphs(&e)), help_command(&args));
            return ExitCode::from(usage_code);
        }
    };
    logging::start(match &cli.command {
        Command::Mount(args) => args.is_in_background(),
        Command::Daemon(args) => args.is_in_background(),
        _ => false,
    });
    if let Some(file) = cli.key_file.or(cli.key_fd.map(|fd| format!("/dev/fd/{fd}").into())) {
        host_key::give(file);
    }
    kedge_host::courier::offer();
    let failure = if matches!(cli.command, Command::Diff(_)) { diff::TROUBLE } else { FAILURE };
    let outcome = match cli.command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Remount(args) => remount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::UpgradeServer(args) => upgrade_server::run(args),
        Command::ServerOffer => upgrade_server::offer(),
        Command::Courier { kept } => kedge_host::courier::run(kept).map(|()| ExitCode::SUCCESS),
        Command::Trim(args) => trim::run(args),
        Command::Freeze(args) => freeze::freeze(args),
        Command::Thaw(args) => freeze::thaw(args),
        Command::Fsck(args) => fsck::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Resize(args) => resize::run(args),
        Command::Fork(args) => fork::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Send(args) => send::send(args),
        Command::Receive(args) => send::receive(args),
        Command::Limit(args) => limit::run(args),
        Command::Key(args) => key::run(args),
        Command::Info(args) => info::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Top(args) => top::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Image(args) => image::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Find(args) => find::run(args),
        Command::Mkdir(args) => mkdir::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Cp(args) => cp::run(args),
        Command::Tar(args) => tar::run(args),
        Command::InstallHelpers(args) => install::run(args),
        Command::Bench { .. } => Err(Usage(BENCH_MOVED.into()).into()),
        Command::Crash(args) => crash::run(args),
    };
    match outcome {
        Ok(code) => code,
        // The reader has closed the pipe, as in `kedge dump … | head`.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("kedge: {}", one_line(&format!("{e:#}")));
            ExitCode::from(match e.is::<Usage>() {
                true => usage_code,
                false if is_fsck => fsck::OPERATIONAL,
                false => failure,
            })
        }
    }
}

/// The command line for help about the given subcommand, or about `kedge` itself.
fn help_command(args: &[OsString]) -> String {
    let mut command = command();
    let mut words = String::from("kedge");
    for word in args.iter().skip(1).filter_map(|word| word.to_str()) {
        let found = command.get_subcommands().find(|c| c.get_name() == word && !c.is_hide_set());
        let Some(found) = found.cloned() else { break };
        words = format!("{words} {word}");
        command = found;
    }
    words + " --help"
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Inserts the subcommand if the program was called by another name. mount(8), mkfs(8) and fsck(8)
/// call helpers by name: `mount.kedgefs IMAGE DIR -o …` is `kedge mount …`. mount.fuse(8) calls
/// `kedgefs`, the file system's type. Programs that use LazyFS call the program `lazyfs`.
fn with_subcommand(mut args: Vec<OsString>) -> Vec<OsString> {
    let name = args
        .first()
        .and_then(|a| Path::new(a).file_name())
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if name == "lazyfs" {
        args.splice(1..1, ["crash", "lazyfs"].map(OsString::from));
        return args;
    }
    let subcommand = match name.split_once('.') {
        Some((command @ ("mount" | "umount" | "mkfs" | "fsck"), _)) => Some(command),
        _ if name == "kedgefs" => Some("mount"),
        _ => None,
    };
    if let Some(subcommand) = subcommand {
        args.insert(1, subcommand.into());
    }
    args
}

/// clap's error and suggestion, without its usage text and its advice about `--`.
fn first_paragraphs(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|m| text.find(m)).min();
    let (what, tips) = text[..end.unwrap_or(text.len())]
        .split_once("\n\n  tip:")
        .unwrap_or((&text[..end.unwrap_or(text.len())], ""));
    match tips.split("\n\n  tip:").next().filter(|tip| tip.contains("similar")) {
        Some(tip) => format!("{what}; {tip}"),
        None => what.to_owned(),
    }
}

#[cfg(test)]
#[path = "main_tests.rs"]
mod tests;
