//! Dispatches a call to its procedure, and builds the reply.

use crate::access::Caller;
use crate::export::{Export, OnChange, Rights};
use crate::rpc::{self, Call, Message, Refusal};
use crate::xdr::{Decoded, Malformed, Reader, Writer};
use crate::{figures, files, listing, mounting, names, portmap};
use kedgefs::FileSystem;

const NFS: u32 = 100_003;
const NFS_VERSION: u32 = 3;

type Procedure = fn(&Export, &Caller, &mut Reader<'_>, &mut Writer) -> Decoded<()>;

/// The procedures of NFS version 3, by number.
const PROCEDURES: [Procedure; 22] = [
    null,
    files::getattr,
    files::setattr,
    names::lookup,
    files::access,
    files::readlink,
    files::read,
    files::write,
    names::create,
    names::mkdir,
    names::symlink,
    names::mknod,
    names::remove,
    names::rmdir,
    names::rename,
    names::link,
    listing::readdir,
    listing::readdirplus,
    figures::fsstat,
    figures::fsinfo,
    figures::pathconf,
    files::commit,
];

fn null(_: &Export, _: &Caller, _: &mut Reader<'_>, _: &mut Writer) -> Decoded<()> {
    Ok(())
}

/// The procedures on one image, without a socket: they take a message and return a message.
pub struct Procedures {
    export: Export,
    port: u16,
}

impl Procedures {
    /// `port` is the port of NFS that the port mapper returns.
    pub fn new(fs: FileSystem, rights: Rights, port: u16) -> kedgefs::Result<Procedures> {
        Procedures::beside(fs, rights, port, None)
    }

    /// [`Procedures::new`] where another door to the file system exists, which `on_change` informs
    /// of changes.
    pub(crate) fn beside(
        fs: FileSystem,
        rights: Rights,
        port: u16,
        on_change: Option<OnChange>,
    ) -> kedgefs::Result<Procedures> {
        Ok(Procedures { export: Export::new(fs, rights, on_change)?, port })
    }

    /// Executes the call in a message and returns its reply; `None` if the message is not a call.
    pub fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        match rpc::read(message).ok()? {
            Message::Call(call) => Some(rpc::reply(call.xid, execute(&self.export, self.port, call))),
            Message::Denied(reply) => Some(reply),
        }
    }

    pub(crate) fn admits(&self, port: u16) -> bool {
        self.export.rights.admit(port)
    }

    pub(crate) fn fs(&self) -> &FileSystem {
        &self.export.fs
    }
}

fn execute(export: &Export, port: u16, mut call: Call<'_>) -> Result<Writer, Refusal> {
    let mut results = Writer::default();
    match call.program {
        NFS if call.version == NFS_VERSION => {
            let procedure = PROCEDURES.get(call.procedure as usize).ok_or(Refusal::Procedure)?;
            let caller = export.caller(call.credential);
            procedure(export, &caller, &mut call.args, &mut results)
                .map_err(|Malformed| Refusal::Arguments)?;
        }
        NFS => return Err(Refusal::Version(NFS_VERSION)),
        mounting::PROGRAM => mounting::execute(export, &mut call, &mut results)?,
        portmap::PROGRAM => portmap::execute(port, &mut call, &mut results)?,
        _ => return Err(Refusal::Program),
    }
    Ok(results)
}
