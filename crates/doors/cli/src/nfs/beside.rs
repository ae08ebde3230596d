//! `kedge mount --nfs`: an NFS server in the process of a mount, on the same file system.
//!
//! The kernel caches no names, attributes and listings of such a mount
//! ([`kedge_fuse::FuseOptions::shared`]). What it caches of a file's bytes is dropped after each
//! change of a client and before the reply to the client, by the worker that made the change: it
//! waits for pages that are being read or written, for which no worker of the NFS server is needed.
//!
//! A name that a client has taken away makes the kernel hold the file until the name is looked up
//! again. The kernel is notified of it by a thread of its own, because the notification waits for
//! the lock of the directory, which a program may hold for long. No reply depends on it.

use super::{Users, listen, ready_text};
use crate::listen as words;
use anyhow::{Context, Result};
use kedge_base::spawn_named;
use kedge_fuse::{MountedSession, Notifier};
use kedge_host::Usage;
use kedge_host::options::MountWords;
use kedge_host::serve::Stop;
use kedge_nfs::{Changed, Limits, Server};
use kedgefs::{FileSystem, Ino};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Names of which the kernel is not yet notified. Further ones are left out: the kernel then drops
/// them when it looks them up, or needs the memory.
const NAMES_MAX: usize = 4096;

#[derive(clap::Args, Debug)]
pub struct NfsArgs {
    /// Serve the image over NFS version 3 as well, at this address; a port without an address is on
    /// 127.0.0.1. A client that is admitted can act as any user
    #[arg(long, value_name = "[ADDRESS:]PORT", conflicts_with = "daemon")]
    nfs: Option<String>,
    #[command(flatten)]
    users: Users,
}

impl NfsArgs {
    pub fn is_asked(&self) -> bool {
        self.nfs.is_some()
    }

    /// Where to listen.
    fn address(&self) -> Result<Option<SocketAddr>> {
        self.nfs.as_deref().map(|text| words::address_of("--nfs", text)).transpose()
    }

    /// Refuses what cannot be combined. `prints`: the command shows the port.
    pub fn check(&self, options: &MountWords, prints: bool) -> Result<()> {
        let refused = |why: &str| Err(Usage(why.to_owned()).into());
        let Some(address) = self.address()? else {
            return match self.users.are_default() {
                true => Ok(()),
                false => refused("--squash, --anonymous and --any-port need --nfs"),
            };
        };
        if options.volatile {
            return refused("--nfs and -o volatile: NFS promises that what is written is durable");
        }
        if options.keeper {
            return refused("--nfs and -o keeper: the server that takes over would not listen");
        }
        if options.writeback_cache == Some(true) {
            return refused("--nfs and -o writeback_cache: the kernel would keep writes to itself");
        }
        if address.port() == 0 && !prints {
            return refused("--nfs: port 0, any free port, needs --foreground, which prints the port");
        }
        Ok(())
    }

    /// The options as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let nfs = self.nfs.iter().flat_map(|address| ["--nfs".to_owned(), address.clone()]);
        nfs.chain(self.users.words()).collect()
    }

    /// Takes the port.
    pub fn listen(&self) -> Result<Option<TcpListener>> {
        let Some(address) = self.address()? else { return Ok(None) };
        // Refused before the mount is visible.
        self.users.ports_below(address)?;
        listen(address).map(Some)
    }

    /// Begins to serve the clients of the listener. The result ends that.
    pub fn serve(
        &self,
        listener: TcpListener,
        fs: &FileSystem,
        session: &MountedSession,
    ) -> Result<(SocketAddr, Stop)> {
        let rights = self.users.rights(&listener, session.root())?;
        let notifier = session.notifier();
        let (names, gone) = sync_channel(NAMES_MAX);
        let notified = notifier.clone();
        let dropper = spawn_named("nfs-names", move || drop_names(&notified, &gone))
            .context("start a thread for the NFS server")?;
        let on_change = Arc::new(move |what: Changed<'_>| notify(&notifier, &names, what));
        let server = Server::start_beside(fs.clone(), listener, rights, Limits::default(), on_change)
            .context("start the NFS server")?;
        let address = server.address();
        let stop = move || {
            // The last of the server's threads drops the sender of names.
            server.stop();
            if dropper.join().is_err() {
                tracing::error!("the thread that notifies the kernel of names panicked");
            }
        };
        Ok((address, Box::new(stop)))
    }

    /// The line that says how to mount, for a server in another process.
    pub fn ready_text(&self, image: &Path) -> Result<Option<String>> {
        Ok(self.address()?.map(|address| ready_text(image, address)))
    }
}

/// Notifies the kernel of a change, or has the other thread do so.
fn notify(notifier: &Notifier, names: &SyncSender<(Ino, Vec<u8>)>, what: Changed<'_>) {
    match what {
        Changed::Data(ino) => {
            if let Err(e) = notifier.inode_changed(ino) {
                tracing::warn!(ino = ino.0, "the mount may still show old bytes: {e}");
            }
        }
        Changed::Name(dir, name) => {
            if names.try_send((dir, name.to_vec())).is_err() {
                tracing::debug!(dir = dir.0, "a name is not dropped, because too many wait");
            }
        }
    }
}

fn drop_names(notifier: &Notifier, gone: &Receiver<(Ino, Vec<u8>)>) {
    for (dir, name) in gone {
        if let Err(e) = notifier.name_gone(dir, &name) {
            tracing::debug!(dir = dir.0, "a name is not dropped: {e}");
        }
    }
}
