//! The NBD negotiation: fixed newstyle, structured replies if the server has them, `NBD_OPT_GO`.
//!
//! The client trusts nothing from the server unchecked: texts and lists are bounded, each size is
//! checked before use, and the whole negotiation must end within the time limit.

use super::stream::Stream;
use super::wire::*;
use crate::interface::OPTIMAL_IO;
use kedge_base::{BLOCK_SIZE, Clock, SystemClock};
use std::time::Duration;

/// Maximum number of replies to one option before its acknowledgement.
const REPLIES_MAX: usize = 64;
/// Longest wait between two checks of the time limit.
const TICK: Duration = Duration::from_millis(100);

/// The properties of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    pub flags: u16,
    /// Largest payload of one request in bytes, a multiple of the block size.
    pub payload_max: u32,
    pub structured: bool,
}

impl Export {
    pub fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

struct Talk<'a> {
    stream: &'a Stream,
    clock: SystemClock,
    until: Duration,
}

/// Negotiates the use of `export`. Errors are texts for the user.
pub fn negotiate(stream: &Stream, export: &str, limit: Duration) -> Result<Export, String> {
    stream.set_timeouts(TICK.min(limit), Some(limit)).map_err(|e| e.to_string())?;
    let clock = SystemClock::default();
    let talk = Talk { stream, clock, until: clock.monotonic() + limit };
    let hello: [u8; 18] = talk.read()?;
    if hello[..8] != NBD_MAGIC {
        return Err("it is no NBD server".into());
    }
    if hello[8..16] != OPTION_MAGIC {
        return Err("it speaks the old style of NBD, without negotiation".into());
    }
    let flags = u16_at(&hello, 16);
    if flags & FIXED_NEWSTYLE == 0 {
        return Err("it does not speak the fixed new style of NBD".into());
    }
    stream.write_all(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes(), &[])?;
    let structured = talk.structured_replies()?;
    let (size, flags, payload_max) = talk.go(export)?;
    if size < BLOCK_SIZE as u64 || size > i64::MAX as u64 {
        return Err(format!("the export has {size} bytes, which is no size of an image"));
    }
    Ok(Export { size, flags, payload_max, structured })
}

impl Talk<'_> {
    fn read<const N: usize>(&self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), String> {
        self.stream.read_exact(bytes, || match self.clock.monotonic() < self.until {
            true => Ok(()),
            // Some servers serve one client at a time and leave a second client without a reply.
            false => Err("the server does not finish the negotiation in time; has it another client?".into()),
        })
    }

    fn ask(&self, option: u32, data: &[u8]) -> Result<(), String> {
        let mut head = OPTION_MAGIC.to_vec();
        head.extend(option.to_be_bytes());
        head.extend((data.len() as u32).to_be_bytes());
        self.stream.write_all(&head, data)
    }

    /// Reads a reply to `option`. Returns its type and contents.
    fn reply(&self, option: u32) -> Result<(u32, Vec<u8>), String> {
        let head: [u8; 20] = self.read()?;
        if u64_at(&head, 0) != OPTION_REPLY_MAGIC || u32_at(&head, 8) != option {
            return Err("the server replies to an option that was not sent".into());
        }
        let len = u32_at(&head, 16) as usize;
        // The longest meaningful reply is an information with a text.
        if len > TEXT_MAX + 64 {
            return Err(format!("the server replies to an option with {len} bytes"));
        }
        let mut data = vec![0; len];
        self.fill(&mut data)?;
        Ok((u32_at(&head, 12), data))
    }

    fn structured_replies(&self) -> Result<bool, String> {
        self.ask(OPT_STRUCTURED_REPLY, &[])?;
        match self.reply(OPT_STRUCTURED_REPLY)? {
            (REP_ACK, data) if data.is_empty() => Ok(true),
            (REP_ERR_UNSUP | REP_ERR_POLICY, _) => Ok(false),
            (kind, data) => Err(refusal(kind, &data, "")),
        }
    }

    /// Selects the export. Returns its size, flags and largest payload.
    fn go(&self, export: &str) -> Result<(u64, u16, u32), String> {
        let mut data = (export.len() as u32).to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend(1u16.to_be_bytes());
        data.extend(INFO_BLOCK_SIZE.to_be_bytes());
        self.ask(OPT_GO, &data)?;
        let (mut export_info, mut payload_max) = (None, PAYLOAD_MAX);
        for _ in 0..REPLIES_MAX {
            let (kind, data) = self.reply(OPT_GO)?;
            match kind {
                REP_ACK => {
                    let (size, flags) =
                        export_info.ok_or("the server does not state the size of the export")?;
                    return Ok((size, flags, whole_blocks(payload_max)));
                }
                REP_INFO if data.len() >= 2 => match (u16_at(&data, 0), data.len()) {
                    (INFO_EXPORT, 12) => export_info = Some((u64_at(&data, 2), u16_at(&data, 10))),
                    (INFO_BLOCK_SIZE, 14) => payload_max = block_sizes(&data)?,
                    (INFO_EXPORT | INFO_BLOCK_SIZE, _) => {
                        return Err("the server's description of the export is malformed".into());
                    }
                    _ => {}
                },
                _ => return Err(refusal(kind, &data, export)),
            }
        }
        Err("the server does not stop describing the export".into())
    }
}

/// Returns the largest payload in bytes. Refuses exports that do not accept single blocks.
fn block_sizes(data: &[u8]) -> Result<u32, String> {
    let (min, max) = (u32_at(data, 2), u32_at(data, 10));
    if !min.is_power_of_two() || min > BLOCK_SIZE as u32 {
        return Err(format!("the export takes requests of multiples of {min} bytes, not of {BLOCK_SIZE}"));
    }
    if max < BLOCK_SIZE as u32 {
        return Err(format!("the export takes requests of at most {max} bytes, not of {BLOCK_SIZE}"));
    }
    Ok(max)
}

/// Rounds the payload down to whole blocks, and limits it to a useful size: the server must reply
/// to each request within the time limit.
fn whole_blocks(payload_max: u32) -> u32 {
    let bytes = payload_max.min(OPTIMAL_IO);
    bytes - bytes % BLOCK_SIZE as u32
}

fn refusal(kind: u32, data: &[u8], export: &str) -> String {
    let what = match kind {
        REP_ERR_TLS_REQD => "the server demands TLS, which is not spoken here: use a tunnel".to_owned(),
        REP_ERR_UNKNOWN => format!("there is no export {export:?}"),
        REP_ERR_SHUTDOWN => "the server is shutting down".to_owned(),
        REP_ERR_BLOCK_SIZE_REQD => "the server demands block sizes that it does not name".to_owned(),
        REP_ERR_UNSUP => "the server is too old: it does not know NBD_OPT_GO".to_owned(),
        kind if kind & REP_ERROR != 0 => format!("the server refuses, with error {}", kind & !REP_ERROR),
        kind => format!("the server sends a reply of unknown kind {kind}"),
    };
    if data.is_empty() || kind & REP_ERROR == 0 { what } else { format!("{what} ({})", text(data)) }
}
