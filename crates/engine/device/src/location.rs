//! The location of an image: a file or block device, a window of one, or the URI of an image that
//! another machine serves.
//!
//! ```text
//! file:PATH?offset=BYTES[&sizelimit=BYTES]
//! rbd:POOL/IMAGE[@SNAPSHOT][?id=USER&conf=FILE&timeout=SECONDS]
//! nbd://HOST[:PORT][/EXPORT][?connections=N&timeout=SECONDS]
//! nbd+unix:///[EXPORT]?socket=PATH[&connections=N&timeout=SECONDS]
//! ```
//! `%XX` stands for the byte with that hexadecimal value. A file whose name looks like a URI is
//! written `./nbd:…`.
//!
//! The text of a [`Location`] is canonical: two locations of the same image have equal texts, as
//! far as this can be decided without contacting a server.

use kedge_base::{BLOCK_SIZE, Error, Result, parse_size};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port that IANA has assigned to NBD.
const NBD_PORT: u16 = 10809;
/// Longest name of an export in bytes, which the protocol defines.
const EXPORT_MAX: usize = 4096;
/// Longest path of a Unix socket in bytes, which the kernel defines.
const SOCKET_MAX: usize = 107;
pub const CONNECTIONS_DEFAULT: usize = 2;
const CONNECTIONS_MAX: u64 = 16;
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
pub const TIMEOUT_SECS_MAX: u64 = 3600;

/// The location of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// A file or block device of this host.
    Path(PathBuf),
    /// A part of a file or block device.
    Window(WindowUri),
    Nbd(NbdUri),
    Rbd(RbdUri),
}

/// A range of bytes of a file or block device that contains an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowUri {
    pub path: PathBuf,
    /// Start in bytes, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes, a positive multiple of the block size; `None`: up to the end of the file.
    pub size: Option<u64>,
}

/// An image of a Ceph cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RbdUri {
    pub pool: String,
    pub image: String,
    pub snapshot: Option<String>,
    /// The Ceph user without `client.`; `None` means `admin`.
    pub id: Option<String>,
    /// Path of the cluster's configuration file; `None` means the first of Ceph's default paths.
    pub conf: Option<String>,
    /// Time without a reply to an operation after which the device fails.
    pub timeout: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdUri {
    pub address: NbdAddress,
    /// Name of the export; empty for the server's default export.
    pub export: String,
    /// Maximum number of connections, on a server that allows several.
    pub connections: usize,
    /// Time without a reply to a request after which the device fails.
    pub timeout: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdAddress {
    Tcp { host: String, port: u16 },
    Unix { socket: PathBuf },
}

impl Location {
    /// Parses the text that a user gives.
    pub fn parse(text: &Path) -> Result<Location> {
        let Some(uri) = text.to_str() else { return Ok(Location::Path(text.to_owned())) };
        let wrong = |why: String| Error::invalid(format!("{uri}: {why}"));
        let Some((scheme, rest)) = uri.split_once(':') else { return Ok(Location::Path(text.to_owned())) };
        match scheme {
            "file" if is_window(rest.as_bytes()) => window(rest).map(Location::Window).map_err(wrong),
            "nbd" => tcp(rest).map(Location::Nbd).map_err(wrong),
            "nbd+unix" => unix(rest).map(Location::Nbd).map_err(wrong),
            "rbd" => rbd(rest).map(Location::Rbd).map_err(wrong),
            "nbds" | "nbds+unix" => {
                Err(wrong("TLS is not spoken here: use nbd: through a tunnel (ssh, stunnel)".into()))
            }
            _ if rest.starts_with("//") && is_scheme(scheme) => Err(wrong(format!(
                "nothing is known of {scheme}: images; file:, nbd:, nbd+unix: and rbd: are known, and a file of that name is \
                 ./{uri}"
            ))),
            _ => Ok(Location::Path(text.to_owned())),
        }
    }

    /// Returns the location with an absolute path, so that it is valid in every working directory.
    pub fn absolute(self) -> Result<Location> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|e| Error::invalid(format!("{}: {e}", path.display())))
        };
        match self {
            Location::Path(path) => absolute(path).map(Location::Path),
            Location::Window(uri) => Ok(Location::Window(WindowUri { path: absolute(uri.path)?, ..uri })),
            Location::Nbd(mut uri) => {
                if let NbdAddress::Unix { socket } = &mut uri.address {
                    *socket = absolute(std::mem::take(socket))?;
                }
                Ok(Location::Nbd(uri))
            }
            Location::Rbd(mut uri) => {
                if let Some(conf) = &mut uri.conf {
                    *conf = absolute(std::mem::take(conf).into())?.to_string_lossy().into_owned();
                }
                Ok(Location::Rbd(uri))
            }
        }
    }

    /// Returns whether both locations name the same image, as far as their texts show.
    pub fn same_image(&self, other: &Location) -> bool {
        match (self, other) {
            (Location::Window(a), Location::Window(b)) => (&a.path, a.offset) == (&b.path, b.offset),
            (Location::Nbd(a), Location::Nbd(b)) => a.address == b.address && a.export == b.export,
            (Location::Rbd(a), Location::Rbd(b)) => {
                (&a.pool, &a.image, &a.snapshot, &a.conf) == (&b.pool, &b.image, &b.snapshot, &b.conf)
            }
            _ => self == other,
        }
    }

    /// Returns the path of the file or block device of this host that contains the image.
    pub fn host_path(&self) -> Option<&Path> {
        match self {
            Location::Path(path) => Some(path),
            Location::Window(uri) => Some(&uri.path),
            Location::Nbd(_) | Location::Rbd(_) => None,
        }
    }

    /// Returns whether the image is named by a URI: a window of a file, or an image that another
    /// process serves.
    pub fn is_uri(&self) -> bool {
        !matches!(self, Location::Path(_))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Path(path) => path.display().fmt(f),
            Location::Window(uri) => uri.fmt(f),
            Location::Nbd(uri) => uri.fmt(f),
            Location::Rbd(uri) => uri.fmt(f),
        }
    }
}

impl WindowUri {
    /// Checks the numbers as far as that is possible without the file.
    pub fn new(path: PathBuf, offset: u64, size: Option<u64>) -> Result<WindowUri> {
        const BLOCK: u64 = BLOCK_SIZE as u64;
        for (name, bytes) in [("offset", Some(offset)), ("sizelimit", size)] {
            if let Some(bytes) = bytes.filter(|bytes| !bytes.is_multiple_of(BLOCK)) {
                return Err(Error::invalid(format!(
                    "{name}={bytes}: the value must be a multiple of {BLOCK} (a loop device, losetup --{name}, starts \
                     at any sector)"
                )));
            }
        }
        match size {
            Some(0) => Err(Error::invalid("sizelimit=0: an image has at least one block")),
            Some(size) if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) => {
                Err(Error::invalid(format!("offset={offset}, sizelimit={size}: no file is as long")))
            }
            None if offset > i64::MAX as u64 => {
                Err(Error::invalid(format!("offset={offset}: no file is as long")))
            }
            _ => Ok(WindowUri { path, offset, size }),
        }
    }
}

impl fmt::Display for WindowUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}?offset={}", quoted(self.path.as_os_str().as_encoded_bytes()), self.offset)?;
        self.size.map_or(Ok(()), |size| write!(f, "&sizelimit={size}"))
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = quoted(self.export.as_bytes());
        let mut options = Vec::new();
        match &self.address {
            NbdAddress::Tcp { host, port } => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "nbd://{host}:{port}/{export}")?;
            }
            NbdAddress::Unix { socket } => {
                write!(f, "nbd+unix:///{export}")?;
                options.push(format!("socket={}", quoted(socket.as_os_str().as_encoded_bytes())));
            }
        }
        if self.connections != CONNECTIONS_DEFAULT {
            options.push(format!("connections={}", self.connections));
        }
        if self.timeout != TIMEOUT_DEFAULT {
            options.push(format!("timeout={}", self.timeout.as_secs()));
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

impl fmt::Display for RbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rbd:{}/{}", quoted(self.pool.as_bytes()), quoted(self.image.as_bytes()))?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, "@{}", quoted(snapshot.as_bytes()))?;
        }
        let mut options = Vec::new();
        options.extend(self.id.as_ref().map(|id| format!("id={}", quoted(id.as_bytes()))));
        options.extend(self.conf.as_ref().map(|conf| format!("conf={}", quoted(conf.as_bytes()))));
        if self.timeout != TIMEOUT_DEFAULT {
            options.push(format!("timeout={}", self.timeout.as_secs()));
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

/// Returns whether the text after `file:` names a window. Otherwise the whole text is a path: a
/// file name that begins with `file:`, or in `file:/PATH` a file inside an image called `file`.
pub fn is_window(rest: &[u8]) -> bool {
    let has = |word: &[u8]| rest.windows(word.len()).any(|text| text == word);
    has(b"?offset=") || has(b"?sizelimit=")
}

fn window(rest: &str) -> Result<WindowUri, String> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let path = unquoted_bytes(path)?;
    if path.is_empty() {
        return Err("it names no file: file:PATH?offset=BYTES".into());
    }
    let options = Options::parse(options, &["offset", "sizelimit"])?;
    let path = PathBuf::from(OsString::from_vec(path));
    WindowUri::new(path, options.offset.unwrap_or(0), options.sizelimit).map_err(|e| e.to_string())
}

fn rbd(rest: &str) -> Result<RbdUri, String> {
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (place, snapshot) = match place.split_once('@') {
        Some((place, snapshot)) => (place, Some(name_of("a snapshot", snapshot)?)),
        None => (place, None),
    };
    let (pool, image) = place.split_once('/').ok_or("it must be rbd:POOL/IMAGE")?;
    let options = Options::parse(options, &["id", "conf", "timeout"])?;
    Ok(RbdUri {
        pool: name_of("a pool", pool)?,
        image: name_of("an image", image)?,
        snapshot,
        id: options.id,
        conf: options.conf,
        timeout: options.timeout.unwrap_or(TIMEOUT_DEFAULT),
    })
}

/// Parses a Ceph name, which must not contain a slash or an @.
fn name_of(what: &str, text: &str) -> Result<String, String> {
    let name = unquoted(text)?;
    if name.is_empty() || name.contains(['/', '@']) {
        return Err(format!("{name:?} is no name of {what}"));
    }
    Ok(name)
}

fn is_scheme(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn tcp(rest: &str) -> Result<NbdUri, String> {
    let (place, options) = split(rest)?;
    let (authority, export) = place.split_once('/').unwrap_or((place, ""));
    let options = Options::parse(options, &["connections", "timeout"])?;
    if authority.is_empty() {
        return Err("it names no host (a Unix socket: nbd+unix:///EXPORT?socket=PATH)".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, behind) = v6.split_once(']').ok_or("the bracket after the host is missing")?;
            let port = match behind {
                "" => None,
                _ => Some(behind.strip_prefix(':').ok_or("only :PORT may follow the host's bracket")?),
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an address with several colons goes in brackets: [::1]".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:%".contains(&b)) {
        return Err(format!("{host:?} is no host"));
    }
    let port = match port {
        None => NBD_PORT,
        Some(text) => match number(text) {
            Some(port @ 1..=65535) => port as u16,
            _ => return Err(format!("{text:?} is no port")),
        },
    };
    let address = NbdAddress::Tcp { host: host.to_ascii_lowercase(), port };
    options.into_uri(address, export)
}

fn unix(rest: &str) -> Result<NbdUri, String> {
    let (place, options) = split(rest)?;
    let export = match place.strip_prefix('/') {
        Some(export) => export,
        None if place.is_empty() => "",
        None => return Err("it names a host; a Unix socket is named by ?socket=PATH".into()),
    };
    let mut options = Options::parse(options, &["socket", "connections", "timeout"])?;
    let socket = options.socket.take().ok_or("?socket=PATH is missing")?;
    if socket.is_empty() || socket.len() > SOCKET_MAX {
        return Err(format!("the path of a socket has 1 to {SOCKET_MAX} bytes"));
    }
    let socket = PathBuf::from(socket);
    options.into_uri(NbdAddress::Unix { socket }, export)
}

/// Splits the text after `//` at the `?`.
fn split(rest: &str) -> Result<(&str, &str), String> {
    let rest = rest.strip_prefix("//").ok_or("// is missing after the colon")?;
    if rest.contains('#') {
        return Err("# has no meaning here (%23 stands for the character)".into());
    }
    Ok(rest.split_once('?').unwrap_or((rest, "")))
}

#[derive(Default)]
struct Options {
    socket: Option<String>,
    id: Option<String>,
    conf: Option<String>,
    connections: Option<usize>,
    timeout: Option<Duration>,
    offset: Option<u64>,
    sizelimit: Option<u64>,
}

impl Options {
    /// Parses the options of a URI. `known` lists the options that this kind of location has.
    fn parse(text: &str, known: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if name.starts_with("tls") {
                return Err(format!("{name}: TLS is not spoken here, use a tunnel (ssh, stunnel)"));
            }
            if !known.contains(&name) {
                return Err(format!("{name:?} is no option; there are {}", known.join(", ")));
            }
            let twice = match name {
                "id" => options.id.replace(name_of("a user", value)?).is_some(),
                "conf" => match unquoted(value)? {
                    path if path.is_empty() => return Err("conf= names no file".into()),
                    path => options.conf.replace(path).is_some(),
                },
                "socket" => options.socket.replace(unquoted(value)?).is_some(),
                "offset" => options.offset.replace(bytes(name, value)?).is_some(),
                "sizelimit" => options.sizelimit.replace(bytes(name, value)?).is_some(),
                "connections" => match number(value) {
                    Some(n @ 1..=CONNECTIONS_MAX) => options.connections.replace(n as usize).is_some(),
                    _ => return Err(format!("connections={value}: 1 to {CONNECTIONS_MAX} are possible")),
                },
                "timeout" => match number(value) {
                    Some(n @ 1..=TIMEOUT_SECS_MAX) => {
                        options.timeout.replace(Duration::from_secs(n)).is_some()
                    }
                    _ => {
                        return Err(format!("timeout={value}: 1 to {TIMEOUT_SECS_MAX} seconds are possible"));
                    }
                },
                _ => return Err(format!("{name:?} is no option")),
            };
            if twice {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(options)
    }

    fn into_uri(self, address: NbdAddress, export: &str) -> Result<NbdUri, String> {
        let export = unquoted(export)?;
        if export.len() > EXPORT_MAX {
            return Err(format!("the name of an export has at most {EXPORT_MAX} bytes"));
        }
        Ok(NbdUri {
            address,
            export,
            connections: self.connections.unwrap_or(CONNECTIONS_DEFAULT),
            timeout: self.timeout.unwrap_or(TIMEOUT_DEFAULT),
        })
    }
}

/// Accepts digits only, whereas `str::parse` also accepts a sign.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn bytes(name: &str, value: &str) -> Result<u64, String> {
    parse_size(value).map_err(|e| format!("{name}={value}: {e}"))
}

fn unquoted(text: &str) -> Result<String, String> {
    String::from_utf8(unquoted_bytes(text)?).map_err(|_| "the % escapes are not UTF-8".to_owned())
}

/// Does what [`unquoted`] does, for a path, which may contain any bytes.
fn unquoted_bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = byte.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.ok_or("% must be followed by two hexadecimal digits")?);
        rest = &behind[2..];
    }
    if bytes.contains(&0) {
        return Err("a zero byte cannot be part of a name".into());
    }
    Ok(bytes)
}

/// Quotes bytes as `%XX`, except for characters that need no quotes in any component of a URI.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
#[path = "location_tests.rs"]
mod tests;
