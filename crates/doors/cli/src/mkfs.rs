//! `kedge mkfs`: makes an image.

use crate::info;
use anyhow::{Context, Result, bail};
use kedge_device::Device;
use kedge_host::create::Target;
use kedge_host::options::parse_size;
use kedge_host::{Usage, clock, create, engine, mounts};
use kedge_transfer::import;
use kedgefs::FormatOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(version, disable_version_flag = true)]
pub struct Args {
    /// Print the version, as mkfs(8) requires
    #[arg(short = 'V', action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Size of the image; a missing file is created, a shorter one is extended. auto: as large as
    /// the source of --from needs
    #[arg(long, value_name = "SIZE|auto", value_parser = parse_image_size, allow_negative_numbers = true)]
    size: Option<ImageSize>,
    /// Fill the image from a directory, a tar file, or a tar stream on standard input (-), with
    /// owners, modes, times, attributes, hard links, holes and devices
    #[arg(long, value_name = "DIR|TAR|-")]
    from: Option<PathBuf>,
    /// Name of the file system, at most 64 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// UUID of the image [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Size of the log, 1 MiB to 1 GiB (default: a 32nd of the image, at
    /// least 32 MiB, at most a quarter of the image)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    log_size: Option<u64>,
    /// Let files be made immutable or append-only (chattr +i, +a). Each open of a file then costs
    /// two requests
    #[arg(long)]
    immutable: bool,
    /// Give file data checksums, which each read from the image verifies. Data is then never
    /// overwritten in place, except that of files with chattr +C
    #[arg(long)]
    checksums: bool,
    /// Keep the data of files of up to this many bytes in the tree instead of a block of 4096
    /// bytes, at most 2048; off: of no file
    #[arg(long, value_name = "SIZE|off", value_parser = parse_inline, default_value = "off")]
    inline: InlineMax,
    /// Encrypt everything but a header of 64 KiB, which comes on top of the size. The key is that
    /// of --key-file or --key-fd, or a passphrase that is asked for
    #[arg(long)]
    encrypt: bool,
    /// Overwrite existing data on the target
    #[arg(short, long)]
    force: bool,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

const INLINE_MAX: u64 = kedge_format::inline::INLINE_MAX as u64;

#[derive(Clone, Copy, Debug)]
enum ImageSize {
    Bytes(u64),
    Auto,
}

/// The most bytes of a file whose data goes into the tree; 0 for no file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineMax(pub(crate) u64);

impl std::fmt::Display for InlineMax {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { f.write_str("off") } else { self.0.fmt(f) }
    }
}

pub(crate) fn parse_inline(text: &str) -> Result<InlineMax, String> {
    if text == "off" {
        return Ok(InlineMax(0));
    }
    match parse_size(text)? {
        bytes @ 1..=INLINE_MAX => Ok(InlineMax(bytes)),
        bytes => Err(format!("{bytes} bytes: 1 to {INLINE_MAX}, or off")),
    }
}

fn parse_image_size(text: &str) -> Result<ImageSize, String> {
    if text == "auto" { Ok(ImageSize::Auto) } else { parse_size(text).map(ImageSize::Bytes) }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let target = match create::exists(&args.image)? {
        true => Some(open_target(&args.image, args.force)?),
        false => None,
    };
    let is_new = target.is_none();
    let source = open_source(&args, is_new)?;
    let date = clock::source_date()?;
    let bytes = size(&args, source.as_ref(), is_new)?;
    if let Some(bytes) = bytes.filter(|_| is_new) {
        create::refuse_small(&args.image, bytes)?;
    }
    let mut options = FormatOptions {
        size: bytes.map(create::whole_blocks),
        log_size: args.log_size.map(create::whole_blocks),
        label: args.label,
        uuid: args.uuid,
        immutable: args.immutable,
        data_checksums: args.checksums,
        inline_max: args.inline.0,
        // Targets with existing data are refused below, before anything is changed.
        overwrite: true,
        ..FormatOptions::default()
    };
    options.seed = date.map(|date| import::seed(date, &options));
    let fill = |image: Arc<dyn Device>| match &source {
        Some(source) => import::fill(source, image, date),
        None => Ok(()),
    };
    match &target {
        None => {
            let size = options.size.expect("a new image has one");
            create::filled(&args.image, size, &options, args.encrypt, &fill)?;
        }
        Some(target) => overwrite(&args.image, target, &options, args.encrypt, &fill)?,
    }
    info::print(&info::of_image(&args.image)?, false)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes an image in an existing target, which the user knows as `named`.
fn overwrite(
    named: &Path,
    target: &Target,
    options: &FormatOptions,
    encrypt: bool,
    fill: &dyn Fn(Arc<dyn Device>) -> Result<()>,
) -> Result<()> {
    let device = target.device(options.size.map(|size| size + engine::overhead(encrypt)))?;
    let device = engine::format(named, device, options, encrypt)?;
    fill(device).with_context(|| format!("{} is filled only in part", named.display()))
}

fn open_source(args: &Args, is_new: bool) -> Result<Option<import::Source>> {
    let Some(path) = &args.from else { return Ok(None) };
    let above = args.image.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let source = import::Source::open(path, above)?;
    if is_new {
        source.refuse_inside(&args.image)?;
    }
    Ok(Some(source))
}

/// The size of the image in bytes; `None` for the size of the file or device.
fn size(args: &Args, source: Option<&import::Source>, is_new: bool) -> Result<Option<u64>> {
    match (args.size, source) {
        (Some(ImageSize::Bytes(bytes)), _) => Ok(Some(bytes)),
        (Some(ImageSize::Auto), None) => Err(Usage("--size auto needs --from".into()).into()),
        (Some(ImageSize::Auto), Some(source)) => Ok(Some(source.estimate()?.image_size())),
        (None, Some(source)) if is_new => Ok(Some(source.estimate()?.image_size())),
        (None, None) if is_new => {
            let image = args.image.display();
            Err(Usage(format!("{image} does not exist: --size says how large to make it")).into())
        }
        (None, _) => Ok(None),
    }
}

/// Opens an existing target. Refuses one that is mounted, and without `force` one with data.
fn open_target(image: &Path, force: bool) -> Result<Target> {
    let named = image.display();
    if let Some(mount) = mounts::of_image(image)? {
        bail!("{named} is mounted on {}", mount.dir.display());
    }
    let target = Target::open(image)?;
    let Some(held) = target.content()?.name() else { return Ok(target) };
    if !force {
        bail!("{named} holds {held}; -f overwrites it");
    }
    tracing::info!("overwriting {held} on {named}");
    Ok(target)
}
