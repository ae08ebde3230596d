//! The port mapper (RFC 1833, version 2), reduced to the query for the port of NFS. A client that
//! cannot be given a port as an option asks port 111; a server that listens there replies with its
//! own port.

use crate::rpc::{Call, Refusal};
use crate::xdr::Writer;

pub(crate) const PROGRAM: u32 = 100_000;
const VERSION: u32 = 2;
const NULL: u32 = 0;
const GETPORT: u32 = 3;
const TCP: u32 = 6;
const SERVED: [(u32, u32); 2] = [(100_003, 3), (crate::mounting::PROGRAM, 3)];

pub(crate) fn execute(port: u16, call: &mut Call<'_>, results: &mut Writer) -> Result<(), Refusal> {
    if call.version != VERSION {
        return Err(Refusal::Version(VERSION));
    }
    match call.procedure {
        NULL => Ok(()),
        GETPORT => {
            let (program, version, protocol) = (call.args.u32()?, call.args.u32()?, call.args.u32()?);
            let served = protocol == TCP && SERVED.contains(&(program, version));
            results.u32(if served { port.into() } else { 0 });
            Ok(())
        }
        _ => Err(Refusal::Procedure),
    }
}
