//! `kedge serve nfs`: opens an image, serves it over NFS until a termination signal, and closes it.

use crate::listen;
use crate::nfs::{self, Users};
use anyhow::{Context, Result};
use kedge_host::engine::{self, Extra};
use kedge_host::options::{MountWords, parse_cache_size};
use kedge_host::os::{self, TerminationSignals};
use kedge_host::{Usage, image, memory, notify, tag};
use kedge_nfs::{Limits, Server};
use kedgefs::Ino;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
To mount, where the server listens on port 2049 of 127.0.0.1:
  Linux    mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 127.0.0.1:/ DIR
  macOS    mount_nfs -o vers=3,tcp,nolocks,resvport,port=2049,mountport=2049 127.0.0.1:/ DIR
Mount options: ro, rw, tree=PATH, commit=SECONDS, cache_size=SIZE, noatime, relatime, discard,
  nodiscard and those of checkpoints, as kedgefs(5) explains.";

#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub struct Args {
    /// Where to listen; a port without an address is on 127.0.0.1. A client that is admitted can
    /// act as any user
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:2049")]
    listen: String,
    #[command(flatten)]
    users: Users,
    /// Comma-separated mount options, see below
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Memory for cached metadata and file pages (as -o cache_size)
    #[arg(long, value_name = "SIZE", value_parser = parse_cache_size, allow_negative_numbers = true)]
    cache_size: Option<u64>,
    /// For tests: keep unflushed writes in this process, so that killing it acts as a power failure
    #[arg(long, hide = true)]
    volatile: bool,
    /// A file or block device, the LABEL=… or UUID=… of a block device, or rbd:POOL/IMAGE,
    /// nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

/// Parses the mount options. Refuses those that do not control how the image is opened.
fn parse_options(lists: &[String]) -> Result<MountWords> {
    let words = MountWords::parse(lists.iter().map(String::as_str))?;
    if words.volatile {
        let why = "-o volatile: NFS promises that what is written is durable";
        return Err(Usage(why.into()).into());
    }
    let opening = MountWords {
        read_only: words.read_only,
        cache_size: words.cache_size,
        switches: words.switches,
        dirty_tracking: words.dirty_tracking,
        tree_lock: words.tree_lock,
        rbd_timeout: words.rbd_timeout,
        nbd_timeout: words.nbd_timeout,
        offset: words.offset,
        sizelimit: words.sizelimit,
        key_file: words.key_file.clone(),
        tree: words.tree.clone(),
        ..MountWords::default()
    };
    if opening != words {
        let why = "-o: options of a mount by the kernel, such as nosuid, belong to the client's mount";
        return Err(Usage(why.into()).into());
    }
    Ok(words)
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut words = parse_options(&args.options)?;
    let address = listen::address(&args.listen)?;
    let image = image::with_words(&tag::resolve(&args.image)?, &words)?;
    let image = image::resolve(&image)?;
    let signals = TerminationSignals::block().context("block signals")?;
    args.users.ports_below(address)?;
    let listener = nfs::listen(address)?;
    // The NFS client may be this machine's kernel, which may need this process to free memory.
    kedge_fuse::become_io_flusher();
    let extra =
        Extra { cache_size: args.cache_size, volatile: args.volatile, shared: true, ..Extra::default() };
    let opened = engine::open(&image, &mut words, extra)?;
    os::give_large_buffers_back();
    if let Some(notice) = &opened.notice {
        eprintln!("kedge: warning: {notice}");
    }
    let fs = opened.fs.clone();
    drop(opened);
    let memory = memory::Watch::start(&fs);
    let tree = words.tree.as_deref().map(|path| engine::find_tree(&fs, &image, path)).transpose();
    let tree = tree.map(|tree| tree.map_or(Ino::ROOT, |tree| tree.root));
    let served = tree.and_then(|tree| serve(&args, &fs, tree, listener, &signals));
    drop(memory);
    fs.close().with_context(|| format!("close {}", image.display()))?;
    served.map(|()| ExitCode::SUCCESS)
}

/// Serves until a termination signal. When it returns, no thread uses the file system.
fn serve(
    args: &Args,
    fs: &kedgefs::FileSystem,
    tree: Ino,
    listener: TcpListener,
    signals: &TerminationSignals,
) -> Result<()> {
    let rights = args.users.rights(&listener, tree)?;
    let server =
        Server::start(fs.clone(), listener, rights, Limits::default()).context("start the server")?;
    let address = server.address();
    println!("{}", nfs::ready_text(&args.image, address));
    notify::ready();
    let signal = signals.wait();
    notify::stopping();
    server.stop();
    let signal = signal.context("wait for signals")?;
    tracing::info!("signal {signal}: no longer served");
    Ok(())
}
