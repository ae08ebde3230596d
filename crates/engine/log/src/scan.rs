//! Scan: recovery reads the log writes from the tail to the end of the log.
//!
//! A write is *valid* by the numbered rules of [`kedge_format::logwrite`]. The scan takes valid
//! writes in order. The first position without a valid write is the *stop*. It may be the end of
//! the log, or acknowledged records may have been lost there. To distinguish these, recovery also
//! reads beyond the stop.
//!
//! Only a header with a correct tag counts as a header, because a user could have put any other
//! bytes there.
//!
//! # At the expected position
//! | row | header (1, 3, 6) | hashes (2) | epoch (4) | LSN (5) | tail | frames (7) | then |
//! |---|---|---|---|---|---|---|---|
//! | @A | no  |    |       |           |              |     | stop: nothing was written here, or its first sector is missing |
//! | @B | yes | no |       |           |              |     | stop: torn |
//! | @C | yes | ok | newer |           |              |     | corrupt: only a newer superblock slot opens a newer epoch, and it is lost |
//! | @D | yes | ok | older |           |              |     | stop: left over from an earlier mount |
//! | @E | yes | ok | same  | other     |              |     | stop: left over from an earlier lap |
//! | @F | yes | ok | same  | later lap |              |     | corrupt: the tail has passed `from`, the slot that said so is lost |
//! | @G | yes | ok | same  | expected  | above slot's |     | corrupt: the same |
//! | @H | yes | ok | same  | expected  | fine         | bad | corrupt: no crash composes such a write |
//! | @I | yes | ok | same  | expected  | fine         | ok  | take |
//!
//! # Beyond the stop
//! | row | header | hashes | epoch | LSN | tail | durable LSN | then |
//! |---|---|---|---|---|---|---|---|
//! | @J | no  |    |       |           |              |              | nothing |
//! | @K | yes | no |       |           |              |              | nothing |
//! | @L | yes | ok | newer |           |              |              | corrupt: newer slot lost |
//! | @M | yes | ok | older |           |              |              | nothing |
//! | @N | yes | ok | same  | other     |              |              | nothing |
//! | @O | yes | ok | same  | later lap |              |              | corrupt: newer slot lost |
//! | @P | yes | ok | same  | expected  | above slot's |              | corrupt: newer slot lost |
//! | @Q | yes | ok | same  | expected  | fine         | above stop   | corrupt: the write at the stop was durable and is not valid |
//! | @R | yes | ok | same  | expected  | fine         | not above it | nothing: was in flight beside the one that did not make it |
//!
//! Errors and debug messages contain the row that decided, as `@C`. An LSN is "expected" if it is
//! the LSN of that position in this lap, and of a "later lap" if it is larger by a multiple of the
//! ring's size.
//!
//! # How far the scan reads beyond the stop
//! Suppose that the write at the stop had been acknowledged. The first write composed after that
//! has a durable LSN above the stop. A write is composed only while fewer than `IN_FLIGHT_MAX`
//! writes lie between the durable prefix and that write. So at most `IN_FLIGHT_MAX - 1` writes of
//! at most `WRITE_BLOCKS_MAX` blocks lie between the stop and the proof, and the proof starts
//! within `IN_FLIGHT_MAX * WRITE_BLOCKS_MAX` blocks of the stop.
//!
//! If no such write exists, the lost write was the last one. It cannot be distinguished from a
//! write that never completed. A device that keeps what it acknowledged does not lose such a write.
//!
//! The scan reads nothing at or beyond `from + ring`, where the ring's blocks from `from` on would
//! repeat.
//!
//! Beyond the stop a write is read as a whole only if its header alone leads to a decision. For a
//! header of row @M, @N or @R the body makes no difference, because row @K has the same result.
//!
//! # Reading a part again
//! A caller that cannot keep all records in memory calls [`scan_again`] for the rest. The second
//! scan reads nothing beyond the end of the log: the first scan has established the end, and
//! nothing was written since.
//!
//! # Reading ahead
//! The scan judges one position after another, but the reads need not wait for it. Reads are in
//! flight up to `AHEAD` bytes ahead, which is the distance that the scan reads beyond the stop. So
//! wherever the stop is, the scan needs almost all of these bytes anyway. A log of 1 GiB on a
//! device that takes 10 ms for a read costs the time of 256 reads instead of 4,096. The distance
//! does not depend on the measured latency: a shorter distance would save nothing, and a longer one
//! would read bytes that are not needed.
//!
//! A failed read ahead is not an error yet. When the scan reaches its range, it reads the bytes
//! that it needs block by block, and only an error of these reads ends the scan. So the scan fails
//! if and only if the device cannot read bytes on which a decision depends, regardless of the other
//! bytes of the same read.

use crate::config::IN_FLIGHT_MAX;
use crate::ring::{RecordLsn, Ring};
use kedge_base::{BLOCK_SIZE, BlockNo, CorruptKind, Epoch, Error, IoBuf, Lsn, Result};
use kedge_device::{Device, ReadAhead};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LSN_MAX, LogKey, WRITE_BLOCKS_MAX, WriteHeader};
use std::cmp::Ordering;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes of a device read. A larger piece would not stay in the processor's cache.
const PIECE: u64 = 256 << 10;
/// Distance of the reads ahead of the scan in bytes; see "Reading ahead".
const AHEAD: u64 = LOOK_BEYOND;
const RING_MAX: u64 = kedge_format::superblock::LOG_MAX / BLOCK;
/// Bytes that are read beyond the stop; see "How far the scan reads beyond the stop".
const LOOK_BEYOND: u64 = IN_FLIGHT_MAX as u64 * WRITE_BLOCKS_MAX as u64 * BLOCK;

/// The location and state of the log according to the superblock slot.
#[derive(Clone, Debug)]
pub struct ScanConfig {
    pub key: LogKey,
    pub epoch: Epoch,
    pub ring_start: BlockNo,
    pub ring_blocks: u64,
    /// Start of the first log write to scan.
    pub from: Lsn,
    /// The tail in the superblock slot. A write with a newer tail proves that a newer slot was
    /// lost.
    pub slot_tail: Lsn,
}

/// Why the scan of valid writes ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// No log write of this image starts at the stop.
    NoWrite,
    /// The CRC or the body hash does not match.
    Torn,
    /// The stop has a write of an earlier mount.
    OlderEpoch,
    /// The stop has a write of an earlier lap of the ring.
    OlderLap,
    /// The whole ring has valid writes, or the known end of the log was reached.
    RingEnd,
}

/// The result of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanEnd {
    /// End of the last valid write. The first write of the next epoch starts here.
    pub head: Lsn,
    pub writes: u64,
    pub records: u64,
    /// Bytes of records, without their frames.
    pub bytes: u64,
    pub stop: StopReason,
}

/// The relation between a write's LSN and the position at which it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lap {
    /// The LSN of that position in this lap.
    Expected,
    /// The LSN of the same position, one or more laps later.
    Later,
    /// Any other LSN: of an earlier lap, or of bytes within a record that look like a write.
    Other,
}

/// The facts about the bytes at a position. A fact is meaningless if a fact to its left in the
/// tables is false.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Facts {
    header: bool,
    /// Rule 2: the CRC and the body hash match.
    crc: bool,
    epoch: Ordering,
    lap: Lap,
    tail_above_slot: bool,
    frames: bool,
    durable_above_stop: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    Take,
    Stop(StopReason),
    /// Beyond the stop: the bytes prove nothing.
    Nothing,
    NewerSlotLost,
    BadFrames,
    DurableWriteLost,
}

/// A row of one of the tables in the module's head. `None` stands for an empty cell.
struct Row {
    /// The letter of the row in the tables.
    label: char,
    header: bool,
    crc: Option<bool>,
    epoch: Option<Ordering>,
    lap: Option<Lap>,
    tail_above_slot: Option<bool>,
    frames: Option<bool>,
    durable_above_stop: Option<bool>,
    then: Decision,
}

impl Row {
    const fn new(label: char, header: bool, then: Decision) -> Row {
        Row {
            label,
            header,
            crc: None,
            epoch: None,
            lap: None,
            tail_above_slot: None,
            frames: None,
            durable_above_stop: None,
            then,
        }
    }

    const fn of_epoch(label: char, epoch: Ordering, then: Decision) -> Row {
        Row { crc: Some(true), epoch: Some(epoch), ..Row::new(label, true, then) }
    }

    const fn of_lap(label: char, lap: Lap, then: Decision) -> Row {
        Row { lap: Some(lap), ..Row::of_epoch(label, Ordering::Equal, then) }
    }

    const fn of_tail(label: char, above: bool, then: Decision) -> Row {
        Row { tail_above_slot: Some(above), ..Row::of_lap(label, Lap::Expected, then) }
    }

    fn matches(&self, facts: &Facts) -> bool {
        fn cell<T: PartialEq>(cell: Option<T>, fact: T) -> bool {
            cell.is_none_or(|want| want == fact)
        }
        self.header == facts.header
            && cell(self.crc, facts.crc)
            && cell(self.epoch, facts.epoch)
            && cell(self.lap, facts.lap)
            && cell(self.tail_above_slot, facts.tail_above_slot)
            && cell(self.frames, facts.frames)
            && cell(self.durable_above_stop, facts.durable_above_stop)
    }
}

const AT_EXPECTED: [Row; 9] = [
    Row::new('A', false, Decision::Stop(StopReason::NoWrite)),
    Row { crc: Some(false), ..Row::new('B', true, Decision::Stop(StopReason::Torn)) },
    Row::of_epoch('C', Ordering::Greater, Decision::NewerSlotLost),
    Row::of_epoch('D', Ordering::Less, Decision::Stop(StopReason::OlderEpoch)),
    Row::of_lap('E', Lap::Other, Decision::Stop(StopReason::OlderLap)),
    Row::of_lap('F', Lap::Later, Decision::NewerSlotLost),
    Row::of_tail('G', true, Decision::NewerSlotLost),
    Row { frames: Some(false), ..Row::of_tail('H', false, Decision::BadFrames) },
    Row { frames: Some(true), ..Row::of_tail('I', false, Decision::Take) },
];

const BEYOND_STOP: [Row; 9] = [
    Row::new('J', false, Decision::Nothing),
    Row { crc: Some(false), ..Row::new('K', true, Decision::Nothing) },
    Row::of_epoch('L', Ordering::Greater, Decision::NewerSlotLost),
    Row::of_epoch('M', Ordering::Less, Decision::Nothing),
    Row::of_lap('N', Lap::Other, Decision::Nothing),
    Row::of_lap('O', Lap::Later, Decision::NewerSlotLost),
    Row::of_tail('P', true, Decision::NewerSlotLost),
    Row { durable_above_stop: Some(true), ..Row::of_tail('Q', false, Decision::DurableWriteLost) },
    Row { durable_above_stop: Some(false), ..Row::of_tail('R', false, Decision::Nothing) },
];

fn decide<'a>(table: &'a [Row], facts: &Facts) -> &'a Row {
    table.iter().find(|row| row.matches(facts)).expect("the tables cover all facts")
}

/// Calls `visit` for the records of all valid writes from `config.from` on, in order. An error of
/// `visit` ends the scan.
pub fn scan(
    device: &dyn Device,
    config: ScanConfig,
    visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>,
) -> Result<ScanEnd> {
    let mut walk = Walk::new(device, config, None)?;
    let end = walk.take(visit)?;
    walk.look_beyond(end.head)?;
    Ok(end)
}

/// Calls `visit` for the records of the writes from `config.from` to `end` once more. An earlier
/// scan has found that the log ends at `end`, and nothing was written since.
pub fn scan_again(
    device: &dyn Device,
    config: ScanConfig,
    end: Lsn,
    visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut walk = Walk::new(device, config, Some(end))?;
    let found = walk.take(visit)?.head;
    if found != end {
        let what = format!("LSN {found}: the log write there was valid, and is not when it is read again");
        return Err(Error::corrupt(CorruptKind::Log, walk.ring.block(found), what));
    }
    Ok(())
}

/// Iterates over the frames of a write's payload, up to the first that does not fit. Allocates
/// nothing.
fn frames<'a>(header: &WriteHeader, write: &'a [u8]) -> Frames<'a> {
    Frames { base: header.lsn, write, at: HEADER_SIZE, end: HEADER_SIZE + header.payload_bytes as usize }
}

struct Frames<'a> {
    base: Lsn,
    write: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = (Lsn, &'a [u8]);

    fn next(&mut self) -> Option<(Lsn, &'a [u8])> {
        let rest = self.write.get(self.at..self.end)?;
        let (len, rest) = rest.split_first_chunk::<FRAME_SIZE>()?;
        let record = rest.get(..u32::from_le_bytes(*len) as usize)?;
        if record.is_empty() {
            return None;
        }
        let start = Lsn(self.base.0 + self.at as u64);
        self.at += FRAME_SIZE + record.len();
        Some((start, record))
    }
}

/// Checks rule 7: the frames divide the payload exactly.
fn frames_divide(header: &WriteHeader, write: &[u8]) -> bool {
    let mut frames = frames(header, write);
    let records = frames.by_ref().count();
    frames.at == frames.end && records == header.records as usize
}

/// A forward read of the ring in large pieces, several of them in flight.
struct Walk<'a> {
    device: &'a dyn Device,
    pieces: ReadAhead<'a>,
    /// End of the last piece requested.
    asked: Lsn,
    /// Pieces from this LSN on are requested only when they are needed.
    horizon: Lsn,
    /// Bytes between `data_end()` and this LSN must be read block by block, because the read of
    /// their piece failed.
    unread: Lsn,
    config: ScanConfig,
    ring: Ring,
    /// `from + ring`, or the end of the log if it is known.
    limit: Lsn,
    /// LSN of the first byte in `data`.
    data_start: Lsn,
    /// Bytes of at most one log write and one piece.
    data: Vec<u8>,
}

impl<'a> Walk<'a> {
    /// `end` is the end of the log if it is known.
    fn new(device: &'a dyn Device, config: ScanConfig, end: Option<Lsn>) -> Result<Walk<'a>> {
        // The values come from the superblock slot, so a bad one means a corrupt superblock.
        if !config.from.0.is_multiple_of(BLOCK)
            || config.from.0 > LSN_MAX
            || !(1..=RING_MAX).contains(&config.ring_blocks)
        {
            let what = format!("scan from LSN {} in a ring of {} blocks", config.from, config.ring_blocks);
            return Err(Error::corrupt(CorruptKind::Superblock, config.ring_start, what));
        }
        let ring = Ring::new(config.ring_start, config.ring_blocks);
        let lap = Lsn(config.from.0 + ring.bytes());
        let limit = end.unwrap_or(lap);
        assert!(config.from <= limit && limit <= lap, "the log fits its ring");
        let (data_start, data, asked, unread) = (config.from, Vec::new(), config.from, config.from);
        Ok(Walk {
            device,
            pieces: ReadAhead::new(device),
            asked,
            horizon: limit,
            unread,
            config,
            ring,
            limit,
            data_start,
            data,
        })
    }

    /// Visits the records of valid writes until the stop, and returns the stop.
    fn take(&mut self, visit: &mut dyn FnMut(RecordLsn, &[u8]) -> Result<()>) -> Result<ScanEnd> {
        let (head, stop) = (self.config.from, StopReason::RingEnd);
        let mut end = ScanEnd { head, writes: 0, records: 0, bytes: 0, stop };
        while end.head < self.limit {
            let at = end.head;
            let (facts, header) = self.look(at)?;
            let row = decide(&AT_EXPECTED, &facts);
            match (row.then, header) {
                (Decision::Take, Some(header)) => {
                    for (start, record) in frames(&header, self.bytes(at, header.blocks as u64 * BLOCK)?) {
                        let lsn = RecordLsn {
                            start,
                            end: Lsn(start.0 + (FRAME_SIZE + record.len()) as u64),
                            write_start: at,
                        };
                        visit(lsn, record)?;
                        end.records += 1;
                        end.bytes += record.len() as u64;
                    }
                    end.writes += 1;
                    end.head = header.end_lsn();
                }
                (Decision::Stop(reason), _) => {
                    end.stop = reason;
                    tracing::debug!(lsn = %at, row = %row.label, ?reason, "the log ends");
                    break;
                }
                (_, header) => return Err(self.corrupt(row, at, at, header)),
            }
        }
        Ok(end)
    }

    /// Fails if a write beyond the stop proves that the log does not end at the stop.
    fn look_beyond(&mut self, stop: Lsn) -> Result<()> {
        let last = self.limit.min(Lsn(stop.0 + LOOK_BEYOND));
        self.horizon = Lsn(last.0 + BLOCK).min(self.limit);
        let mut at = Lsn(stop.0 + BLOCK);
        while at <= last && at < self.limit {
            let (mut facts, header) = self.peek(at, stop)?;
            // For most headers the result is the same whether or not the write is whole.
            if decide(&BEYOND_STOP, &Facts { crc: true, ..facts }).then != Decision::Nothing {
                self.read_whole(at, header, &mut facts)?;
            }
            let row = decide(&BEYOND_STOP, &facts);
            match row.then {
                Decision::Nothing => at = Lsn(at.0 + BLOCK),
                _ => return Err(self.corrupt(row, at, stop, header)),
            }
        }
        Ok(())
    }

    /// Returns the bytes `[at, at + len)`. The range must end at or below the limit, and `at` must
    /// not be below the `at` of an earlier call.
    fn bytes(&mut self, at: Lsn, len: u64) -> Result<&[u8]> {
        let end = at.0 + len;
        assert!(
            at >= self.data_start && end <= self.limit.0,
            "the walk goes forward and stays within the ring"
        );
        if end > self.data_end().0 {
            let skip = at.0 - self.data_start.0;
            assert!(skip <= self.data.len() as u64, "the walk skips nothing");
            self.data.drain(..skip as usize);
            self.data_start = at;
        }
        while end > self.data_end().0 {
            if self.data_end() < self.unread {
                self.read_block()?;
            } else {
                self.take_piece(at)?;
            }
        }
        let first = (at.0 - self.data_start.0) as usize;
        Ok(&self.data[first..first + len as usize])
    }

    fn data_end(&self) -> Lsn {
        Lsn(self.data_start.0 + self.data.len() as u64)
    }

    /// Returns the length of the piece that begins at `from`.
    fn piece(&self, from: Lsn) -> u64 {
        PIECE.min(self.limit.0 - from.0).min(self.ring.until_end(from))
    }

    /// Appends the next piece to `data`, or marks it for reading block by block. `at` is the
    /// position of the scan.
    fn take_piece(&mut self, at: Lsn) -> Result<()> {
        let upto = |ahead: u64| self.horizon.0.min(at.0 + ahead).max(self.data_end().0 + 1);
        let (enough, far) = (upto(AHEAD / 2), upto(AHEAD));
        // Reads are requested for half of the distance at a time, so that the device gets batches
        // and always has work.
        if self.asked.0 < enough {
            let mut reads = Vec::new();
            while self.asked.0 < far {
                let piece = self.piece(self.asked);
                reads.push((self.ring.offset(self.asked), (piece / BLOCK) as usize));
                self.asked.0 += piece;
            }
            self.pieces.ask(reads);
        }
        let from = self.data_end();
        match self.pieces.take().expect("pieces ahead of the walk were requested") {
            Ok(buf) => self.data.extend_from_slice(buf.as_bytes()),
            Err(error @ Error::Io { .. }) => {
                let piece = self.piece(from);
                tracing::warn!(%error, lsn = %from, "a part of the log is read block by block");
                self.unread = Lsn(from.0 + piece);
            }
            // The whole device is unusable.
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read_block(&mut self) -> Result<()> {
        let mut block = IoBuf::zeroed(1);
        self.device.read(self.ring.offset(self.data_end()), &mut block)?;
        self.data.extend_from_slice(block.as_bytes());
        Ok(())
    }

    /// Collects all facts about the bytes at the expected position `at`.
    fn look(&mut self, at: Lsn) -> Result<(Facts, Option<WriteHeader>)> {
        let (mut facts, header) = self.peek(at, at)?;
        self.read_whole(at, header, &mut facts)?;
        Ok((facts, header))
    }

    /// Collects the facts that the header at `at` shows. `stop` is the stop, or equals `at` before
    /// the stop is known.
    fn peek(&mut self, at: Lsn, stop: Lsn) -> Result<(Facts, Option<WriteHeader>)> {
        let mut facts = Facts {
            header: false,
            crc: false,
            epoch: Ordering::Equal,
            lap: Lap::Other,
            tail_above_slot: false,
            frames: false,
            durable_above_stop: false,
        };
        let key = self.config.key;
        let Some(header) = WriteHeader::peek(&key, self.bytes(at, BLOCK)?) else { return Ok((facts, None)) };
        if header.blocks as u64 * BLOCK > self.limit.0 - at.0 {
            // Rule 6: the write would overlap the start of the scan, one lap later.
            return Ok((facts, None));
        }
        facts.header = true;
        facts.epoch = header.epoch.cmp(&self.config.epoch);
        facts.lap = match header.lsn.0.checked_sub(at.0) {
            Some(0) => Lap::Expected,
            Some(ahead) if ahead.is_multiple_of(self.ring.bytes()) => Lap::Later,
            _ => Lap::Other,
        };
        facts.tail_above_slot = header.tail_lsn > self.config.slot_tail;
        facts.durable_above_stop = header.durable_lsn > stop;
        Ok((facts, Some(header)))
    }

    /// Reads the whole write and adds the facts that depend on its body.
    fn read_whole(&mut self, at: Lsn, header: Option<WriteHeader>, facts: &mut Facts) -> Result<()> {
        let Some(header) = header else { return Ok(()) };
        let key = self.config.key;
        let write = self.bytes(at, header.blocks as u64 * BLOCK)?;
        facts.crc = header.is_whole(&key, write);
        facts.frames = facts.crc && frames_divide(&header, write);
        Ok(())
    }

    fn corrupt(&self, row: &Row, at: Lsn, stop: Lsn, header: Option<WriteHeader>) -> Error {
        let what = match row.then {
            Decision::NewerSlotLost => format!(
                "LSN {at}: a log write of a newer superblock slot, which is lost (found {header:?}; the slot names {:?}, \
                 tail {})",
                self.config.epoch, self.config.slot_tail
            ),
            Decision::BadFrames => format!("LSN {at}: the records of a log write do not divide its payload"),
            Decision::DurableWriteLost => format!(
                "LSN {stop}: the log write there was durable and is not valid (the one at LSN {at} says so: {header:?})"
            ),
            Decision::Take | Decision::Stop(_) | Decision::Nothing => {
                unreachable!("not a finding of corruption: @{}", row.label)
            }
        };
        let place = if row.then == Decision::DurableWriteLost { stop } else { at };
        Error::corrupt(CorruptKind::Log, self.ring.block(place), format!("{what} [scan row @{}]", row.label))
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
