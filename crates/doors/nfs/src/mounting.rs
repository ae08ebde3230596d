//! The MOUNT protocol, version 3 (appendix I of RFC 1813): returns the handle of the root, or of a
//! directory below it.
//!
//! The server exports the whole image, or one tree. A path is resolved from the exported root,
//! through trees attached below it, but through no symbolic link. The server keeps no list of
//! mounts: clients disappear without an unmount, so the list would be unreliable.

use crate::export::Export;
use crate::handle;
use crate::rpc::{AUTH_SYS, Call, Refusal};
use crate::status::{Outcome, Status};
use crate::xdr::Writer;
use kedgefs::FileKind;

pub(crate) const PROGRAM: u32 = 100_005;
const VERSION: u32 = 3;
const PATH_MAX: usize = 1024;
const NULL: u32 = 0;
const MNT: u32 = 1;
const DUMP: u32 = 2;
const UMNT: u32 = 3;
const UMNTALL: u32 = 4;
const EXPORT: u32 = 5;

pub(crate) fn execute(export: &Export, call: &mut Call<'_>, results: &mut Writer) -> Result<(), Refusal> {
    if call.version != VERSION {
        return Err(Refusal::Version(VERSION));
    }
    match call.procedure {
        NULL | UMNTALL => {}
        MNT => match find(export, call.args.opaque(PATH_MAX)?) {
            Ok(root) => {
                results.u32(0);
                results.opaque(&root);
                results.u32(1);
                results.u32(AUTH_SYS);
            }
            Err(status) => results.u32(mount_status(status)),
        },
        DUMP => results.bool(false),
        UMNT => drop(call.args.opaque(PATH_MAX)?),
        EXPORT => {
            results.bool(true);
            results.opaque(b"/");
            results.bool(false); // no groups: every client may mount
            results.bool(false); // end of the list of exports
        }
        _ => return Err(Refusal::Procedure),
    }
    Ok(())
}

fn find(export: &Export, path: &[u8]) -> Outcome<[u8; handle::LEN]> {
    let mut here = export.fs.getattr(export.rights.tree)?;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        if name == b".." {
            return Err(Status::Acces);
        }
        here = export.fs.lookup(here.ino, name)?;
        if here.kind != FileKind::Directory {
            return Err(Status::NotDir);
        }
    }
    export.handle(&here)
}

/// `mountstat3`.
fn mount_status(status: Status) -> u32 {
    match status {
        Status::NoEnt | Status::Acces | Status::NotDir | Status::NameTooLong | Status::Inval => status as u32,
        _ => Status::Io as u32,
    }
}
