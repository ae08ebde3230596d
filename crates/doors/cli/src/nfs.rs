//! What `kedge serve nfs` and `kedge mount --nfs` have in common: the options that say which
//! clients are admitted and as which users they act, and the line that says how to mount.

pub mod beside;

use anyhow::{Context, Result, ensure};
use kedge_nfs::{Rights, Squash};
use kedgefs::{Ino, Owner};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

#[derive(clap::Args, Debug)]
pub struct Users {
    /// Over NFS: which users act as the anonymous user (default: root, or none if only this machine
    /// can connect)
    #[arg(long, value_enum, value_name = "USERS")]
    pub squash: Option<Squashed>,
    /// Over NFS: the anonymous user (default: 65534:65534)
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub anonymous: Option<Owner>,
    /// Over NFS: admit clients on any port. Otherwise only on ports below 1024 that only programs
    /// of root may use: the kernel's client, and no program of another user. Needed through SSH,
    /// with QEMU's user network, and where all users may use these ports
    #[arg(long)]
    pub any_port: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Squashed {
    None,
    Root,
    All,
}

impl Squashed {
    /// The word of the command line.
    fn word(self) -> &'static str {
        match self {
            Squashed::None => "none",
            Squashed::Root => "root",
            Squashed::All => "all",
        }
    }
}

fn parse_owner(text: &str) -> Result<Owner, String> {
    let numbers = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    match numbers {
        Some((uid, gid)) if uid != u32::MAX && gid != u32::MAX => Ok(Owner { uid, gid }),
        _ => Err("it must be two numbers, UID:GID".into()),
    }
}

/// The first port that programs without privilege may use, in this network namespace.
const UNPRIVILEGED: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Clients use no reserved port below this number.
const RESERVED_MIN: u16 = 512;

/// The uid and gid of the user `nobody` on most systems.
const NOBODY: Owner = Owner { uid: 65534, gid: 65534 };

impl Users {
    /// Whether no option is given.
    pub fn are_default(&self) -> bool {
        self.squash.is_none() && self.anonymous.is_none() && !self.any_port
    }

    /// The number below which the port of an admitted client must be; `None`: any port. Reads the
    /// kernel's setting, of whose later changes the server does not know.
    ///
    /// # Errors
    /// All users of this machine may use the ports from which the kernel's client connects, and
    /// only this machine can connect. Then a client's port does not show that the client is the
    /// kernel.
    pub fn ports_below(&self, address: SocketAddr) -> Result<Option<u16>> {
        if self.any_port {
            return Ok(None);
        }
        let start = match fs::read_to_string(UNPRIVILEGED) {
            Ok(text) => text.trim().parse().with_context(|| format!("{UNPRIVILEGED}: {text:?}"))?,
            Err(e) => {
                tracing::warn!(
                    "{UNPRIVILEGED}: {e}: ports below {} count as those of root",
                    Rights::RESERVED
                );
                u32::from(Rights::RESERVED)
            }
        };
        let below = u16::try_from(start).map_or(Rights::RESERVED, |start| start.min(Rights::RESERVED));
        let why = format!(
            "programs of all users of this machine may use ports from {start} on, which the setting \
             net.ipv4.ip_unprivileged_port_start allows"
        );
        if !address.ip().is_loopback() {
            if below < Rights::RESERVED {
                tracing::warn!("{address}: {why}, so that they are admitted too");
            }
            // The setting of this machine says nothing about the ports of other machines.
            return Ok(Some(Rights::RESERVED));
        }
        ensure!(below > RESERVED_MIN, "{address}: {why}; --any-port admits all of them");
        Ok(Some(below))
    }

    /// The rights of the clients of a listener, which see the tree with this root.
    pub fn rights(&self, listener: &TcpListener, tree: Ino) -> Result<Rights> {
        let address = listener.local_addr().context("find the address listened on")?;
        let local = address.ip().is_loopback();
        let ports_below = self.ports_below(address)?;
        if !local {
            tracing::warn!("{address} can be reached from other machines, which name their users themselves");
        }
        let squash = match self.squash {
            Some(Squashed::None) => Squash::None,
            Some(Squashed::Root) => Squash::Root,
            Some(Squashed::All) => Squash::All,
            None if local => Squash::None,
            None => Squash::Root,
        };
        let anonymous = self.anonymous.unwrap_or(NOBODY);
        Ok(Rights { squash, anonymous, ports_below, tree })
    }

    /// The options as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let squash = self.squash.map(|squash| ["--squash".into(), squash.word().into()]);
        let anonymous = self.anonymous.map(|o| ["--anonymous".into(), format!("{}:{}", o.uid, o.gid)]);
        let any_port = self.any_port.then(|| "--any-port".into());
        squash.into_iter().chain(anonymous).flatten().chain(any_port).collect()
    }
}

/// Takes the port. Done before the image is opened, so that an error changes nothing.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("listen on {address}"))
}

/// The line that says how to mount. A program that starts the server waits for it.
pub fn ready_text(image: &Path, address: SocketAddr) -> String {
    let (host, port) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_string(), v4.port()),
        SocketAddr::V6(v6) => (format!("[{}]", v6.ip()), v6.port()),
    };
    format!(
        "{} is served; mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port} {host}:/ DIR",
        image.display()
    )
}
