//! `kedge send` and `kedge receive`: snapshots as streams.

use crate::places::{mixed, place};
use anyhow::{Context, Error, Result, bail};
use kedge_host::Usage;
use kedge_transfer::copy::Place;
use kedge_transfer::receive::Rest;
use kedge_transfer::send::Options;
use kedge_transfer::stream::Token;
use kedge_transfer::{online, trees};
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

const BUFFER: usize = 1 << 20;

#[derive(clap::Args, Debug)]
pub struct SendArgs {
    /// Only the difference from this snapshot, which must be in the receiving image
    #[arg(long, value_name = "A", value_parser = place())]
    from: Option<Place>,
    /// Go on with an interrupted transfer: what `kedge receive` has printed
    #[arg(long, value_name = "TOKEN")]
    resume_from: Option<Token>,
    /// The snapshot to send, in a mount; or IMAGE:/PATH of an image that is not mounted
    #[arg(value_parser = place())]
    snapshot: Place,
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
    /// The snapshot to make, in a mount; or IMAGE:/PATH of an image that is not mounted
    #[arg(value_parser = place())]
    target: Place,
}

pub fn send(args: SendArgs) -> Result<ExitCode> {
    let out = io::stdout();
    if out.is_terminal() {
        return Err(Usage("the stream goes to standard output, which is a terminal".into()).into());
    }
    let mut out = BufWriter::with_capacity(BUFFER, out.lock());
    let resume = args.resume_from;
    let mut in_image =
        |snapshot, base| trees::send(snapshot, base, &mut out, &Options { resume, ..Options::default() });
    let sent = match (&args.snapshot, &args.from) {
        (Place::Image(snapshot), None) => in_image(snapshot, None),
        (Place::Image(snapshot), Some(Place::Image(base))) => in_image(snapshot, Some(base)),
        (Place::Host(snapshot), None) => online::trees::send(snapshot, None, &mut out, resume.as_ref()),
        (Place::Host(snapshot), Some(Place::Host(base))) => {
            online::trees::send(snapshot, Some(base), &mut out, resume.as_ref())
        }
        _ => return Err(mixed()),
    };
    match sent.and_then(|()| out.flush().context("write the stream")) {
        // Other commands succeed if their reader closes the pipe early. An incomplete stream is no
        // snapshot, so this command fails.
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
    let show = match &args.target {
        Place::Image(target) => target.show(),
        Place::Host(target) => target.display().to_string(),
    };
    if args.forget {
        match &args.target {
            Place::Image(target) => trees::forget_partial(target)?,
            Place::Host(target) => online::trees::forget_partial(target)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.status {
        let Some(rest) = rest(&args.target)? else {
            bail!("{show}: no interrupted transfer");
        };
        println!("{}", rest.token);
        if rest.base.is_some() {
            eprintln!("kedge: go on with: {}", hint(&rest, &show));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let input = BufReader::with_capacity(BUFFER, io::stdin().lock());
    let (error, rest) = match &args.target {
        Place::Image(target) => match trees::receive(target, input, args.resume) {
            Ok(()) => (None, None),
            // An error here must not hide the first one.
            Err(e) => (Some(e), rest(&args.target).ok().flatten()),
        },
        Place::Host(target) => {
            let received = online::trees::receive(target, input, args.resume)?;
            (received.error, received.rest)
        }
    };
    match (error, rest) {
        (None, _) => Ok(ExitCode::SUCCESS),
        (Some(e), None) => Err(e),
        (Some(e), Some(rest)) => bail!("{e:#}; go on with: {}", hint(&rest, &show)),
    }
}

/// The commands that go on with an interrupted transfer to `target`.
fn hint(Rest { token, base }: &Rest, target: &str) -> String {
    let from = if base.is_some() { "--from A " } else { "" };
    let mut text = format!("kedge send {from}--resume-from {token} … | kedge receive --resume {target}");
    if let Some(base) = base {
        text.push_str(&format!(", where A is the snapshot that is {base} in the receiving image"));
    }
    text
}

/// What is needed to resume an interrupted transfer, if there is one.
fn rest(target: &Place) -> Result<Option<Rest>, Error> {
    match target {
        Place::Image(target) => trees::rest(target),
        Place::Host(target) => online::trees::rest(target),
    }
}
