//! Log writes with absurd headers, records and edits.

use super::super::damage::put;
use super::super::fields::LOG_HEADER;
use super::{BLOCK, Liar, get, set};
use kedge_base::{BLOCK_SIZE, Lsn};
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::logwrite::{HEADER_SIZE, WriteHeader};
use kedge_format::{SIZE_MAX, reseal};
use rand::Rng;

impl Liar {
    pub(super) fn log(&mut self) {
        let mut payload = Vec::new();
        let records = self.rng.random_range(1..5u32);
        let mut what = Vec::new();
        for _ in 0..records {
            let record = self.record(&mut what);
            payload.extend_from_slice(&(record.len() as u32).to_le_bytes());
            payload.extend_from_slice(&record);
        }
        let mut write = self.log_write(&payload, records);
        if self.rng.random_bool(0.1) {
            let (name, at, len) = self.one(&LOG_HEADER);
            let n = self.number(get(&write, at, len));
            set(&mut write, at, len, n);
            reseal(&mut write, &self.base.geometry.log_secret);
            what.push(format!("{name} {n}"));
        }
        self.append(&write);
        self.lie(format!("log: {}", what.join(", ")));
    }

    /// Returns a valid log write at the head of the log.
    pub(super) fn log_write(&self, payload: &[u8], records: u32) -> Vec<u8> {
        let blocks = (HEADER_SIZE + payload.len()).div_ceil(BLOCK_SIZE);
        let c = &self.sb.checkpoint;
        let header = WriteHeader {
            epoch: c.epoch,
            lsn: self.head,
            blocks: blocks as u32,
            tail_lsn: c.tail_lsn,
            durable_lsn: self.head,
            payload_bytes: payload.len() as u32,
            records,
        };
        let mut write = vec![0; blocks * BLOCK_SIZE];
        write[HEADER_SIZE..HEADER_SIZE + payload.len()].copy_from_slice(payload);
        header.seal(&self.base.geometry.log_key(), &mut write);
        write
    }

    pub(super) fn append(&mut self, write: &[u8]) {
        let g = &self.base.geometry;
        for (i, block) in write.chunks_exact(BLOCK_SIZE).enumerate() {
            let place = (self.head.0 + i as u64 * BLOCK) % g.log_bytes();
            put(&self.medium, g.log_start.byte_offset() + place, block);
        }
        self.head = Lsn(self.head.0 + write.len() as u64);
    }

    fn record(&mut self, what: &mut Vec<String>) -> Vec<u8> {
        let edits = self.rng.random_range(1..5u16);
        let mut bytes = vec![self.rng.random_range(1..14), 0];
        bytes.extend_from_slice(&edits.to_le_bytes());
        for _ in 0..edits {
            what.push(self.edit(&mut bytes));
        }
        if self.rng.random_bool(0.15) {
            let more = edits + 2;
            bytes[2..4].copy_from_slice(&more.to_le_bytes());
            what.push(self.huge_file(&mut bytes));
        }
        bytes
    }

    fn edit(&mut self, out: &mut Vec<u8>) -> String {
        let tag = self.rng.random_range(1..9u8);
        let tag = if self.rng.random_bool(0.02) { self.rng.random() } else { tag };
        out.push(tag);
        match tag {
            1 => self.inode_edit(out),
            2 => {
                let (key, value) = if self.rng.random_bool(0.7) {
                    self.made_item()
                } else {
                    (self.key(), vec![0; self.rng.random_range(0..200)])
                };
                out.extend_from_slice(&key.encode());
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(&value);
                format!("put {key} {value:02x?}")
            }
            3 => {
                let key = self.key();
                out.extend_from_slice(&key.encode());
                format!("delete {key}")
            }
            4 | 5 => {
                let known = self.one(&self.inside.extents);
                let (start, blocks) = match self.rng.random_range(0..4) {
                    0 => (known.start.0, known.blocks),
                    1 => (self.block().0, self.rng.random_range(0..20)),
                    2 => (self.number(known.start.0), known.blocks),
                    _ => (self.block().0, self.number(known.blocks)),
                };
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&blocks.to_le_bytes());
                format!("{} {start}+{blocks}", if tag == 4 { "alloc" } else { "free" })
            }
            6 => {
                let (ino, offset, len) = (self.ino(), self.offset(), self.rng.random_range(0..9000u32));
                out.extend_from_slice(&ino.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                out.resize(out.len() + len as usize, 0xda);
                format!("data of {ino}: {offset}+{len}")
            }
            _ => {
                let (ino, offset, n) = (self.ino(), self.offset(), self.number(4096));
                let len = if self.rng.random_bool(0.5) { n % 4096 } else { n };
                out.extend_from_slice(&ino.to_le_bytes());
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
                format!("{} of {ino}: {offset}+{len}", if tag == 7 { "zero" } else { "drop" })
            }
        }
    }

    /// Appends a huge size of a file and an edit of a huge range of it. Each needs the other to
    /// have an effect.
    fn huge_file(&mut self, out: &mut Vec<u8>) -> String {
        let (ino, size) = (self.one(&self.inside.keys).ino.max(1), self.one(&[1 << 40, FILE_SIZE_MAX]));
        let (tag, offset) = (self.one(&[7, 8]), self.one(&[0, 1, 4096]));
        let len = self.one(&[1 << 20, 1 << 30, size / 2, size - offset, SIZE_MAX]);
        out.push(1);
        out.extend_from_slice(&ino.to_le_bytes());
        out.extend_from_slice(&(1u32 << 5).to_le_bytes());
        out.extend_from_slice(&size.to_le_bytes());
        out.push(tag);
        for n in [ino, offset, len] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        format!("size of {ino}: {size}, {} {offset}+{len}", if tag == 7 { "zero" } else { "drop" })
    }

    fn offset(&mut self) -> u64 {
        if self.rng.random_bool(0.5) { self.rng.random_range(0..40_000) } else { self.number(4096) }
    }

    fn inode_edit(&mut self, out: &mut Vec<u8>) -> String {
        let ino = self.ino();
        let all = (1 << 14) - 1;
        let mask = match self.rng.random_range(0..5) {
            0 => 1 << 31 | all,
            1 => 1 << 31 | 1 | 1 << 4,
            2 => self.rng.random(),
            3 => all,
            _ => 1 << self.rng.random_range(0..14),
        };
        out.extend_from_slice(&ino.to_le_bytes());
        out.extend_from_slice(&u32::to_le_bytes(mask));
        let core = self.core().encode();
        // The order of the mask's bits: mode to nlink, size to ctime, then the nanoseconds of the
        // times.
        let fields = [0, 4, 8, 12, 16].map(|at| (at, 4)).into_iter();
        let fields = fields.chain([24, 32, 40, 48, 56].map(|at| (at, 8)));
        for (bit, (at, len)) in fields.enumerate() {
            if mask & 1 << bit != 0 {
                let was = get(&core, at, len);
                let n = if self.rng.random_bool(0.3) { self.number(was) } else { was };
                out.extend_from_slice(&n.to_le_bytes()[..len]);
            }
        }
        for bit in 10..14 {
            if mask & 1 << bit != 0 {
                out.extend_from_slice(&self.number(0).to_le_bytes());
                let nsec = if self.rng.random_bool(0.1) { self.number(0) as u32 } else { 5 };
                out.extend_from_slice(&nsec.to_le_bytes());
            }
        }
        format!("inode {ino} {mask:#x}")
    }
}
