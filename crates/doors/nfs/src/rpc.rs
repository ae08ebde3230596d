//! ONC RPC version 2 (RFC 5531): the head of each call and of each reply.

use crate::xdr::{Decoded, Malformed, Reader, Writer};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
const AUTH_BADCRED: u32 = 1;
const AUTH_TOOWEAK: u32 = 5;
const AUTH_NONE: u32 = 0;
pub(crate) const AUTH_SYS: u32 = 1;
/// Limit for the bytes of a credential's body.
const AUTH_BYTES_MAX: usize = 400;
/// Limit for the groups in a credential of AUTH_SYS.
const GROUPS_MAX: u32 = 16;
const MACHINE_NAME_MAX: usize = 255;

/// The user for which a client calls. The client states it without proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// AUTH_NONE.
    Anonymous,
    /// AUTH_SYS.
    Unix { uid: u32, gid: u32, groups: Vec<u32> },
}

/// A call whose head is valid.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) credential: Credential,
    pub(crate) args: Reader<'a>,
}

/// Why a call is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No such program.
    Program,
    /// The program has only this version.
    Version(u32),
    /// No such procedure.
    Procedure,
    Arguments,
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Refusal {
        Refusal::Arguments
    }
}

/// A decoded message.
pub(crate) enum Message<'a> {
    Call(Call<'a>),
    /// A call that is not executed: this message is its reply.
    Denied(Vec<u8>),
}

/// Decodes the head of a message. After an error the connection is out of step and must be closed.
pub(crate) fn read(bytes: &[u8]) -> Decoded<Message<'_>> {
    let mut r = Reader::new(bytes);
    let xid = r.u32()?;
    if r.u32()? != CALL {
        return Err(Malformed);
    }
    if r.u32()? != RPC_VERSION {
        return Ok(Message::Denied(denied(xid, &[RPC_MISMATCH, RPC_VERSION, RPC_VERSION])));
    }
    let (program, version, procedure) = (r.u32()?, r.u32()?, r.u32()?);
    let (flavor, body) = (r.u32()?, r.opaque(AUTH_BYTES_MAX)?);
    let (_verifier_flavor, _verifier) = (r.u32()?, r.opaque(AUTH_BYTES_MAX)?);
    let credential = match flavor {
        AUTH_NONE => Credential::Anonymous,
        AUTH_SYS => match unix(&mut Reader::new(body)) {
            Ok(credential) => credential,
            Err(Malformed) => return Ok(Message::Denied(denied(xid, &[AUTH_ERROR, AUTH_BADCRED]))),
        },
        _ => return Ok(Message::Denied(denied(xid, &[AUTH_ERROR, AUTH_TOOWEAK]))),
    };
    Ok(Message::Call(Call { xid, program, version, procedure, credential, args: r }))
}

fn unix(r: &mut Reader<'_>) -> Decoded<Credential> {
    let _stamp = r.u32()?;
    let _machine = r.opaque(MACHINE_NAME_MAX)?;
    let (uid, gid, count) = (r.u32()?, r.u32()?, r.u32()?);
    if count > GROUPS_MAX {
        return Err(Malformed);
    }
    let groups = (0..count).map(|_| r.u32()).collect::<Decoded<_>>()?;
    Ok(Credential::Unix { uid, gid, groups })
}

fn denied(xid: u32, words: &[u32]) -> Vec<u8> {
    let mut w = Writer::default();
    [xid, REPLY, DENIED].iter().chain(words).for_each(|word| w.u32(*word));
    w.into_bytes()
}

/// Builds the reply to a call: its head, then the results or the reason for the refusal.
pub(crate) fn reply(xid: u32, results: Result<Writer, Refusal>) -> Vec<u8> {
    let mut w = Writer::default();
    [xid, REPLY, ACCEPTED, AUTH_NONE, 0].into_iter().for_each(|word| w.u32(word));
    match results {
        Ok(results) => {
            w.u32(0);
            w.fixed(&results.into_bytes());
        }
        Err(Refusal::Program) => w.u32(1),
        Err(Refusal::Version(only)) => [2, only, only].into_iter().for_each(|word| w.u32(word)),
        Err(Refusal::Procedure) => w.u32(3),
        Err(Refusal::Arguments) => w.u32(4),
    }
    w.into_bytes()
}
