//! The served image: converts handles to inodes, locks inodes for changes, and makes changes
//! durable.

use crate::access::{Caller, Squash};
use crate::handle;
use crate::rpc::Credential;
use crate::status::{Outcome, Status, of_handle};
use crate::wire::{Around, Identity};
use crate::xdr::Writer;
use kedge_base::{Clock, SystemClock};
use kedgefs::{Attr, Error, FileKind, FileSystem, Ino, Owner, TreeInfo};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Locks of inodes, striped by inode number. A lock is held for an operation in memory, not during
/// the force of the log, so that changes of one directory share a force.
const STRIPES: usize = 1024;

/// Which clients the server admits, and as which users they act.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Which users of clients act as `anonymous`.
    pub squash: Squash,
    /// The user for squashed users and for calls without a credential.
    pub anonymous: Owner,
    /// Admits only clients on ports below this number; `None`: on any port. Where only root may
    /// bind these ports, the client's kernel vouches for the user in a call.
    pub ports_below: Option<u16>,
    /// The root of the tree that clients see, together with the trees attached below it.
    /// [`Ino::ROOT`] is the whole image.
    pub tree: Ino,
}

impl Rights {
    /// The ports below this number are those of root on all systems, unless they are configured
    /// otherwise.
    pub const RESERVED: u16 = 1024;

    pub(crate) fn admit(&self, port: u16) -> bool {
        self.ports_below.is_none_or(|end| port < end)
    }
}

/// A client's change of something that another door to the same file system may have cached.
#[derive(Clone, Copy, Debug)]
pub enum Changed<'a> {
    /// The bytes of a file.
    Data(Ino),
    /// A name in a directory that no longer refers to the file that it referred to. Names of
    /// directories are not reported.
    Name(Ino, &'a [u8]),
}

/// Called after each change and before its reply, with no lock held.
pub type OnChange = Arc<dyn Fn(Changed<'_>) + Send + Sync>;

/// One image, as the server exports it to all clients.
pub(crate) struct Export {
    pub(crate) fs: FileSystem,
    pub(crate) identity: Identity,
    pub(crate) read_only: bool,
    pub(crate) rights: Rights,
    stripes: Vec<Mutex<()>>,
    verifier: AtomicU64,
    /// `None`: this server alone changes the file system.
    beside: Option<OnChange>,
}

/// Holds the locks of one or two inodes.
#[allow(dead_code, reason = "held, not read")]
pub(crate) struct Locked<'a>(MutexGuard<'a, ()>, Option<MutexGuard<'a, ()>>);

impl Export {
    pub(crate) fn new(fs: FileSystem, rights: Rights, beside: Option<OnChange>) -> kedgefs::Result<Export> {
        let info: serde_json::Value = serde_json::from_str(&fs.info_json()).unwrap_or_default();
        let uuid = info["uuid"].as_str().and_then(|text| uuid::Uuid::parse_str(text).ok());
        let uuid = uuid.ok_or(kedgefs::Error::Invalid("the image has no uuid"))?;
        let epoch = info["epoch"].as_u64().unwrap_or_default();
        Ok(Export {
            identity: Identity(*uuid.as_bytes()),
            read_only: fs.options().read_only,
            rights,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            verifier: AtomicU64::new(first_verifier(epoch)),
            beside,
            fs,
        })
    }

    pub(crate) fn caller(&self, credential: Credential) -> Caller {
        Caller::new(credential, self.rights.squash, self.rights.anonymous)
    }

    /// Returns the attributes of the inode that a handle names.
    pub(crate) fn resolve(&self, handle: &[u8]) -> Outcome<Attr> {
        let (ino, generation) = handle::decode(&self.identity.0, handle)?;
        let tree = self.fs.tree_of(ino).map_err(of_handle)?;
        if !self.is_seen(tree.as_ref()) {
            return Err(Status::Stale);
        }
        let attr = self.fs.getattr(ino).map_err(of_handle)?;
        // An inode without a name exists only while a caller of the library uses it.
        match attr.nlink > 0 && handle::generation(&attr, tree.as_ref()) == generation {
            true => Ok(attr),
            false => Err(Status::Stale),
        }
    }

    /// Whether clients may reach the inodes of this tree. A client can guess a handle, so the lack
    /// of a path to the inode does not protect it.
    fn is_seen(&self, tree: Option<&TreeInfo>) -> bool {
        let shown = self.rights.tree;
        if shown == Ino::ROOT {
            return true;
        }
        // The walk goes from tree to parent tree, and ends where `tree_of` returns `None`: in the
        // image's first tree. An image may nest as many trees as it has, so this is a loop and not
        // a recursion.
        let mut at = tree.cloned();
        while let Some(tree) = at {
            if tree.root == shown {
                return true;
            }
            at = self.fs.tree_of(tree.dir).ok().flatten();
        }
        false
    }

    /// Returns the handle of an inode. Fails if its tree was deleted.
    pub(crate) fn handle(&self, attr: &Attr) -> Outcome<[u8; handle::LEN]> {
        let tree = self.fs.tree_of(attr.ino).map_err(of_handle)?;
        Ok(handle::encode(&self.identity.0, attr, tree.as_ref()))
    }

    /// Writes a `post_op_fh3`. Without a handle in the reply, the client sends a LOOKUP.
    pub(crate) fn post_op_handle(&self, w: &mut Writer, attr: Option<&Attr>) {
        let handle = attr.and_then(|attr| self.handle(attr).ok());
        w.optional(handle.as_ref(), |w, handle| w.opaque(handle));
    }

    /// Whether `dir` is the root that clients see. Its `..` is `dir` itself.
    pub(crate) fn is_top(&self, dir: Ino) -> bool {
        dir == self.rights.tree
    }

    /// Whether the inode cannot be changed because the server or the inode's tree is read-only.
    pub(crate) fn is_read_only(&self, ino: Ino) -> Outcome<bool> {
        let tree = self.fs.tree_of(ino).map_err(of_handle)?;
        Ok(self.read_only || tree.is_some_and(|tree| tree.read_only))
    }

    pub(crate) fn resolve_dir(&self, handle: &[u8]) -> Outcome<Attr> {
        let attr = self.resolve(handle)?;
        if attr.kind == FileKind::Directory { Ok(attr) } else { Err(Status::NotDir) }
    }

    fn stripe(ino: Ino) -> usize {
        ino.0 as usize % STRIPES
    }

    pub(crate) fn lock(&self, ino: Ino) -> Locked<'_> {
        Locked(self.stripes[Export::stripe(ino)].lock(), None)
    }

    /// Locks two inodes, in ascending order of their stripes.
    pub(crate) fn lock_both(&self, a: Ino, b: Ino) -> Locked<'_> {
        let (a, b) = (Export::stripe(a), Export::stripe(b));
        let first = self.stripes[a.min(b)].lock();
        Locked(first, (a != b).then(|| self.stripes[a.max(b)].lock()))
    }

    /// Runs a change of the inode that a handle names, under the inode's lock. Stores the
    /// attributes from before and after the change in `around`.
    pub(crate) fn change<T>(
        &self,
        handle: &[u8],
        around: &mut Around,
        run: impl FnOnce(&Attr) -> Outcome<T>,
    ) -> Outcome<T> {
        let (ino, _) = handle::decode(&self.identity.0, handle)?;
        let _locked = self.lock(ino);
        let attr = self.resolve(handle)?;
        around.before = self.before(attr);
        let outcome = run(&attr);
        around.after = self.fs.getattr(ino).ok();
        outcome
    }

    /// The attributes before a change, for the reply. `None` beside a mount, which takes no lock of
    /// this server: a client that found its own attributes in the reply would keep a cache that a
    /// change of the mount in between has made stale.
    pub(crate) fn before(&self, attr: Attr) -> Option<Attr> {
        self.beside.is_none().then_some(attr)
    }

    /// Reports a change to the other door. The caller holds no lock of an inode.
    pub(crate) fn changed(&self, what: Changed<'_>) {
        if let Some(on_change) = &self.beside {
            on_change(what);
        }
    }

    /// Makes the data of a file durable, with the metadata needed to read it. Without `datasync`,
    /// all of the file's attributes as well.
    pub(crate) fn force_data(&self, ino: Ino, datasync: bool) -> Outcome<()> {
        self.forced(self.fs.fsync(ino, datasync))
    }

    /// Makes a change durable whose record is the inode's last or an earlier one. Concurrent calls
    /// share a force of the log. Neither writes data of the inode nor reports that data was lost:
    /// that is the error of the client that has written the data.
    pub(crate) fn force_change(&self, ino: Ino) -> Outcome<()> {
        match self.fs.sync_attributes(ino) {
            // Another client has removed the inode since. Its last record can no longer be found,
            // so a sync makes everything durable, this change included.
            Err(Error::NotFound) => self.forced(self.fs.sync()),
            forced => self.forced(forced),
        }
    }

    fn forced(&self, result: kedgefs::Result<()>) -> Outcome<()> {
        result.map_err(|e| match of_handle(e) {
            // The file was removed in the meantime, so no data can be lost.
            Status::Stale => Status::Stale,
            status => {
                self.note_loss();
                status
            }
        })
    }

    /// Changes the write verifier, because accepted data may be lost. Clients that see the new
    /// verifier send all uncommitted data again.
    pub(crate) fn note_loss(&self) {
        self.verifier.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn verifier(&self) -> u64 {
        self.verifier.load(Ordering::SeqCst)
    }
}

/// The first write verifier: a value that no earlier start of the server on this image has used.
/// The epoch rises with each mount. A crash can undo that; then the time differs.
fn first_verifier(epoch: u64) -> u64 {
    let now = SystemClock::default().now();
    let nanoseconds = (now.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.nsec.into());
    nanoseconds ^ epoch.rotate_left(40)
}
