//! `kedge send` and `kedge receive`: snapshots as streams.

use crate::places::image_path;
use anyhow::{Context, Result, bail};
use kedge_host::Usage;
use kedge_transfer::offline::ImagePath;
use kedge_transfer::send::Options;
use kedge_transfer::stream::Token;
use kedge_transfer::trees;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

const BUFFER: usize = 1 << 20;

#[derive(clap::Args, Debug)]
pub struct SendArgs {
    /// Only the difference from this snapshot, which must be in the receiving image
    #[arg(long, value_name = "IMAGE:/PATH", value_parser = image_path())]
    from: Option<ImagePath>,
    /// Go on with an interrupted transfer: what `kedge receive` has printed
    #[arg(long, value_name = "TOKEN")]
    resume_from: Option<Token>,
    /// The snapshot to send, in an image that is not mounted
    #[arg(value_parser = image_path())]
    snapshot: ImagePath,
}

#[derive(clap::Args, Debug)]
pub struct ReceiveArgs {
    /// Go on with an interrupted transfer, with the stream of `kedge send --resume-from`
    #[arg(long)]
    resume: bool,
    /// Show how an interrupted transfer goes on, and receive nothing
    #[arg(long, conflicts_with = "resume")]
    status: bool,
    /// Delete what an interrupted transfer has left, and receive nothing
    #[arg(long, conflicts_with_all = ["resume", "status"])]
    forget: bool,
    /// The snapshot to make, in an image that is not mounted
    #[arg(value_parser = image_path())]
    target: ImagePath,
}

pub fn send(args: SendArgs) -> Result<ExitCode> {
    let out = io::stdout();
    if out.is_terminal() {
        return Err(Usage("the stream goes to standard output, which is a terminal".into()).into());
    }
    let mut out = BufWriter::with_capacity(BUFFER, out.lock());
    let options = Options { resume: args.resume_from, ..Options::default() };
    let sent = trees::send(&args.snapshot, args.from.as_ref(), &mut out, &options);
    match sent.and_then(|()| out.flush().context("write the stream")) {
        // Other commands end well if their reader has seen enough. A part of a stream is no
        // snapshot.
        Err(e) if is_closed(&e) => bail!("the reader of the stream has ended before the stream"),
        sent => sent.map(|()| ExitCode::SUCCESS),
    }
}

/// Whether the reader of a pipe has closed it.
fn is_closed(e: &anyhow::Error) -> bool {
    let io = e.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

pub fn receive(args: ReceiveArgs) -> Result<ExitCode> {
    if args.forget {
        trees::forget_partial(&args.target)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.status {
        let Some(partial) = trees::partial(&args.target)? else {
            bail!("{}: no interrupted transfer", args.target.show());
        };
        println!("{}", partial.token);
        return Ok(ExitCode::SUCCESS);
    }
    let input = BufReader::with_capacity(BUFFER, io::stdin().lock());
    let received = trees::receive(&args.target, input, args.resume);
    if let Err(e) = received {
        // An error here must not hide the first one.
        if let Ok(Some(partial)) = trees::partial(&args.target) {
            bail!(
                "{e:#}; go on with: kedge send --resume-from {} … | kedge receive --resume {}",
                partial.token,
                args.target.show()
            );
        }
        return Err(e);
    }
    Ok(ExitCode::SUCCESS)
}
