//! Which procedure a call names, and its reply.

use crate::access::Caller;
use crate::export::Export;
use crate::rpc::{self, Call, Message, Refusal};
use crate::xdr::{Decoded, Malformed, Reader, Writer};
use crate::{figures, files, listing, mounting, names, portmap};

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

/// Executes the call in a message and returns its reply. An error means that the message is no
/// call.
pub(crate) fn serve(export: &Export, port: u16, message: &[u8]) -> Decoded<Vec<u8>> {
    Ok(match rpc::read(message)? {
        Message::Call(call) => rpc::reply(call.xid, execute(export, port, call)),
        Message::Denied(reply) => reply,
    })
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
