//! A model of the allocator and of the medium: every block has a state and the identity of its last
//! writer.
//!
//! The model is stricter than the file system: every allocated block and every node is written at
//! once. After each crash, every block that the recovered state uses must still contain what its
//! owner wrote. This tests the reasons in the crate's documentation by their consequences, not by
//! inspecting the allocator's lists.

use crate::test_device::{TestDevice, plan, write_frozen};
use crate::{Alloc, DataReservation, FrozenAlloc, NodeClass};
use kedge_base::{BlockNo, Error, Extent, Generation, Lsn};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::superblock::Geometry;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Place { goal: u16, want: u16, reservation: Option<u8> },
    Apply { which: u8, part: bool },
    Release { which: u8, part: bool },
    Free { which: u8, from: u16, blocks: u16 },
    Durable { behind: u8 },
    Reserve { blocks: u16 },
    Split { which: u8, blocks: u16 },
    Drop { which: u8 },
    Nodes { reclaim: bool, reserve: u8, copies: u8, grow: i8, seed: u64 },
    Freeze,
    Finish { fail: bool },
    Crash { lose: u8, copies: u8, seed: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<u8>();
    prop_oneof![
        8 => (any::<u16>(), prop_oneof![Just(1), 1..20u16, 1..600u16], proptest::option::of(which))
            .prop_map(|(goal, want, reservation)| Op::Place { goal, want, reservation }),
        6 => (which, any::<bool>()).prop_map(|(which, part)| Op::Apply { which, part }),
        1 => (which, any::<bool>()).prop_map(|(which, part)| Op::Release { which, part }),
        5 => (which, any::<u16>(), 1..400u16).prop_map(|(which, from, blocks)| Op::Free { which, from, blocks }),
        3 => (0..4u8).prop_map(|behind| Op::Durable { behind }),
        2 => (1..500u16).prop_map(|blocks| Op::Reserve { blocks }),
        1 => (which, 0..300u16).prop_map(|(which, blocks)| Op::Split { which, blocks }),
        1 => which.prop_map(|which| Op::Drop { which }),
        5 => (any::<bool>(), 0..24u8, 0..24u8, -3..4i8, any::<u64>())
            .prop_map(|(reclaim, reserve, copies, grow, seed)| Op::Nodes { reclaim, reserve, copies, grow, seed }),
        2 => Just(Op::Freeze),
        2 => any::<bool>().prop_map(|fail| Op::Finish { fail }),
        1 => (any::<u8>(), 0..20u8, any::<u64>()).prop_map(|(lose, copies, seed)| Op::Crash { lose, copies, seed }),
    ]
}

#[derive(Clone)]
enum Edit {
    /// An allocation, with the identity of the writer of each block.
    Alloc(Extent, Vec<u64>),
    Free(Extent),
}

/// The tree and the files at a point in time: the owner of each block.
#[derive(Clone, Default)]
struct Image {
    data: BTreeMap<u64, u64>,
    nodes: BTreeMap<u64, (Generation, u64)>,
}

struct InFlight {
    frozen: FrozenAlloc,
    generation: Generation,
    image: Image,
    cut: u64,
}

struct Model {
    geometry: Geometry,
    device: TestDevice,
    alloc: Alloc,
    image: Image,
    placed: Vec<Extent>,
    pending: BTreeMap<u64, u64>,
    deferred: BTreeMap<u64, Generation>,
    reservations: Vec<DataReservation>,
    in_flight: Option<InFlight>,
    /// The last durable checkpoint: its generation, its image and its cut.
    durable: (Generation, Image, u64),
    current: Generation,
    /// The edits with the end LSNs of their records.
    log: Vec<(u64, Edit)>,
    head: u64,
    durable_lsn: u64,
    /// The last writer of each block.
    medium: BTreeMap<u64, u64>,
    writes: u64,
}

impl Model {
    fn new(groups: u64) -> Model {
        let blocks = if groups == 1 { 4096 } else { groups * GROUP_BLOCKS + 333 };
        let geometry = plan(blocks, if groups == 1 { 2048 } else { 1024 });
        let mut model = Model {
            alloc: Alloc::format(&geometry),
            device: TestDevice::new(blocks),
            geometry,
            image: Image::default(),
            placed: Vec::new(),
            pending: BTreeMap::new(),
            deferred: BTreeMap::new(),
            reservations: Vec::new(),
            in_flight: None,
            durable: (Generation(0), Image::default(), 0),
            current: Generation(1),
            log: Vec::new(),
            head: 0,
            durable_lsn: 0,
            medium: BTreeMap::new(),
            writes: 0,
        };
        if groups > 1 {
            model.crowd();
        }
        for _ in 0..30 {
            model.new_node(BlockNo(0)).unwrap();
        }
        model.freeze();
        model.finish(false);
        model
    }

    /// Fills a large image except for some holes, so that the test soon makes it full.
    fn crowd(&mut self) {
        let mut rng = StdRng::seed_from_u64(1);
        while self.alloc.available_data() > 3000 {
            let e = self.alloc.alloc_data(BlockNo(0), 2000, None).unwrap();
            self.apply(e);
            let hole = Extent::new(BlockNo(e.start.0 + rng.random_range(0..e.blocks)), 1);
            self.free(hole);
        }
        self.durable(self.head);
    }

    fn state_of(&self, block: u64) -> Option<&'static str> {
        let slot = &(block / 4 * 4);
        if self.image.data.contains_key(&block) {
            Some("data")
        } else if self.image.nodes.contains_key(slot) {
            Some("node")
        } else if self.pending.contains_key(&block) {
            Some("pending")
        } else if self.deferred.contains_key(slot) {
            Some("deferred")
        } else {
            self.placed.iter().any(|e| (e.start.0..e.end().0).contains(&block)).then_some("placed")
        }
    }

    /// Writes an extent that was just allocated, after a check that its blocks have no owner.
    fn write(&mut self, e: Extent) -> u64 {
        assert!(e.start >= self.geometry.data_start && e.end().0 <= self.geometry.total_blocks, "{e:?}");
        assert_eq!(e.start.0 / GROUP_BLOCKS, (e.end().0 - 1) / GROUP_BLOCKS, "{e:?} crosses a group");
        self.writes += 1;
        for block in e.start.0..e.end().0 {
            assert_eq!(self.state_of(block), None, "block {block} handed out");
            self.medium.insert(block, self.writes);
        }
        self.writes
    }

    fn written_by(&self, block: u64) -> u64 {
        self.medium.get(&block).copied().unwrap_or(0)
    }

    fn place(&mut self, goal: u16, want: u16, reservation: Option<u8>) {
        let goal = BlockNo((goal as u64 * self.geometry.total_blocks) >> 16);
        let available = self.alloc.available_data();
        let count = self.reservations.len().max(1);
        let mut r = reservation.and_then(|i| self.reservations.get_mut(i as usize % count));
        let promised = r.as_ref().map_or(0, |r| r.blocks());
        match self.alloc.alloc_data(goal, want as u64, r.as_deref_mut()) {
            Ok(e) => {
                assert!(e.blocks >= 1 && e.blocks <= want as u64);
                let left = r.map_or(0, |r| r.blocks());
                assert_eq!(left, promised - e.blocks.min(promised), "draws on the reservation first");
                self.write(e);
                self.placed.push(e);
            }
            Err(Error::NoSpace) => assert_eq!((promised, available), (0, 0)),
            Err(e) => panic!("{e}"),
        }
    }

    /// Removes and returns a placed extent, or its first half; the other half stays placed.
    fn take_placed(&mut self, which: u8, part: bool) -> Option<Extent> {
        if self.placed.is_empty() {
            return None;
        }
        let i = which as usize % self.placed.len();
        let e = self.placed.swap_remove(i);
        if !part || e.blocks == 1 {
            return Some(e);
        }
        let half = e.blocks / 2;
        self.placed.push(Extent::new(BlockNo(e.start.0 + half), e.blocks - half));
        Some(Extent::new(e.start, half))
    }

    fn apply(&mut self, e: Extent) {
        self.alloc.apply_alloc(e).unwrap();
        self.head += 1;
        let ids: Vec<u64> = (e.start.0..e.end().0).map(|b| self.written_by(b)).collect();
        self.image.data.extend((e.start.0..).zip(ids.iter().copied()));
        self.log.push((self.head, Edit::Alloc(e, ids)));
    }

    fn free(&mut self, e: Extent) {
        self.head += 1;
        self.alloc.apply_free(e, Lsn(self.head)).unwrap();
        self.log.push((self.head, Edit::Free(e)));
        for b in e.start.0..e.end().0 {
            self.image.data.remove(&b).unwrap();
            self.pending.insert(b, self.head);
        }
    }

    fn durable(&mut self, lsn: u64) {
        self.durable_lsn = self.durable_lsn.max(lsn);
        self.alloc.durable(Lsn(lsn));
        self.pending.retain(|_, at| *at > self.durable_lsn);
    }

    fn free_some(&mut self, which: u8, from: u16, blocks: u16) {
        let mut keys = self.image.data.keys();
        if keys.len() == 0 {
            return;
        }
        let i = (which as usize * 256 + from as usize) % keys.len();
        let start = *keys.nth(i).unwrap();
        let len = (0..blocks as u64).take_while(|n| self.image.data.contains_key(&(start + n))).count();
        self.free(Extent::new(BlockNo(start), len as u64));
    }

    fn new_node(&mut self, near: BlockNo) -> Result<(), Error> {
        let node = self.alloc.alloc_node(near)?;
        assert_eq!(node.0 % 4, 0);
        let id = self.write(Extent::new(node, 4));
        self.image.nodes.insert(node.0, (self.current, id));
        Ok(())
    }

    fn drop_node(&mut self, addr: u64) {
        let (born, _) = self.image.nodes.remove(&addr).unwrap();
        self.alloc.free_node(BlockNo(addr), born, self.current).unwrap();
        if born != self.current {
            self.deferred.insert(addr, self.current);
        }
    }

    /// Copies nodes as an operation would, and grows or shrinks the tree, within its reservation.
    fn nodes(&mut self, class: NodeClass, reserve: u8, copies: u8, grow: i8, seed: u64) {
        match self.alloc.reserve_nodes(reserve as u32, class) {
            Ok(Some(r)) => {
                let copies = copies.min(reserve);
                self.copy(copies, seed).unwrap();
                for _ in 0..grow.clamp(-1, (reserve - copies) as i8) {
                    self.new_node(BlockNo(seed % self.geometry.total_blocks)).unwrap();
                }
                if grow < 0 && self.image.nodes.len() > 20 {
                    let addr = *self.image.nodes.keys().next_back().unwrap();
                    self.drop_node(addr);
                }
                drop(r);
            }
            Ok(None) => {
                assert!(!self.deferred.is_empty() || !self.pending.is_empty(), "something may come back");
            }
            Err(Error::NoSpace) => assert!(self.pending.is_empty(), "a log force would have helped"),
            Err(e) => panic!("{e}"),
        }
    }

    fn copy(&mut self, copies: u8, seed: u64) -> Result<(), Error> {
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..copies {
            let (&addr, &(born, _)) =
                self.image.nodes.iter().nth(rng.random_range(0..self.image.nodes.len())).unwrap();
            if born != self.current || rng.random_bool(0.1) {
                self.new_node(BlockNo(addr))?;
                self.drop_node(addr);
            }
        }
        Ok(())
    }

    fn freeze(&mut self) {
        if self.in_flight.is_none() {
            let frozen = self.alloc.freeze();
            let clear = self.geometry.total_blocks - self.geometry.data_start.0;
            let owned = self.image.data.len() + 4 * self.image.nodes.len();
            assert_eq!(frozen.free_blocks(), clear - owned as u64);
            let (generation, image, cut) = (self.current, self.image.clone(), self.head);
            self.in_flight = Some(InFlight { frozen, generation, image, cut });
            self.current = generation.next();
        }
    }

    fn finish(&mut self, fail: bool) {
        let Some(InFlight { frozen, generation, image, cut }) = self.in_flight.take() else { return };
        // The log is forced to the cut before the checkpoint writes anything, even if the
        // checkpoint fails afterwards.
        self.durable(cut);
        write_frozen(&self.device, &frozen, generation);
        if fail {
            self.alloc.abandon(frozen);
            // The next checkpoint must use the same slot.
            self.current = self.current.next();
        } else {
            self.alloc.written(frozen);
            self.alloc.checkpoint_durable(generation);
            self.durable = (generation, image, cut);
            self.log.retain(|(lsn, _)| *lsn > cut);
            self.deferred.retain(|_, g| *g > generation);
        }
        if self.durable.0 > Generation(0) {
            self.check_load();
        }
    }

    /// Checks block by block that the last durable checkpoint wrote exactly the blocks owned at its
    /// cut.
    fn check_load(&self) -> Alloc {
        let (generation, image, _) = &self.durable;
        let loaded = Alloc::load(&self.device, &self.geometry, *generation).unwrap();
        let mut expected = vec![crate::Bitmap::new(); self.geometry.groups() as usize];
        let format = (0..self.geometry.data_start.0).map(|b| (b, 1));
        let end = self.geometry.total_blocks;
        let tail = (end..self.geometry.groups() * GROUP_BLOCKS).map(|b| (b, 1));
        let data = image.data.keys().map(|&b| (b, 1));
        let nodes = image.nodes.keys().map(|&b| (b, 4));
        for (block, len) in format.chain(tail).chain(data).chain(nodes) {
            expected[(block / GROUP_BLOCKS) as usize].set((block % GROUP_BLOCKS) as u32, len);
        }
        for (cell, expected) in loaded.cells.iter().zip(&expected) {
            let group = cell.lock();
            group.check();
            assert!(*group.owned == *expected && group.busy() == expected);
        }
        loaded
    }

    /// Simulates a power failure: a suffix of the log that was not durable is lost, then recovery
    /// runs.
    fn crash(&mut self, lose: u8, copies: u8, seed: u64) {
        let undurable = self.head - self.durable_lsn;
        self.head -= undurable * lose as u64 / 255;
        self.durable_lsn = self.head;
        let head = self.head;
        self.log.retain(|(lsn, _)| *lsn <= head);
        self.in_flight = None;
        self.placed.clear();
        self.pending.clear();
        self.deferred.clear();
        self.image = self.durable.1.clone();
        self.current = self.durable.0.next();
        // The tree is read before replay, so its nodes must be intact at this time. Data must be
        // intact only after replay has applied the durable frees.
        self.check_nodes();

        self.alloc = self.check_load();
        self.reservations.clear();
        let log = self.log.clone();
        for (_, edit) in &log {
            if let Edit::Alloc(e, _) = edit {
                self.alloc.hold_for_replay(*e).unwrap();
            }
        }
        for (lsn, edit) in log {
            if let Ok(Some(_r)) = self.alloc.reserve_nodes(copies as u32, NodeClass::Reclaim) {
                self.copy(copies, seed ^ lsn).unwrap();
            }
            match edit {
                Edit::Alloc(e, ids) => {
                    self.alloc.apply_alloc(e).unwrap();
                    for (b, id) in (e.start.0..e.end().0).zip(ids) {
                        assert_eq!(self.state_of(b), None, "block {b} is free when its record is replayed");
                        self.image.data.insert(b, id);
                    }
                }
                Edit::Free(e) => {
                    self.alloc.apply_free(e, Lsn(lsn)).unwrap();
                    for b in e.start.0..e.end().0 {
                        self.image.data.remove(&b).unwrap();
                    }
                }
            }
        }
        self.alloc.replay_done();
        self.check_medium();
        self.check();
    }

    /// Checks that every block contains what its owner wrote.
    fn check_medium(&self) {
        for (b, id) in &self.image.data {
            assert_eq!(self.written_by(*b), *id, "foreign bytes in data block {b}");
        }
        self.check_nodes();
    }

    fn check_nodes(&self) {
        for (b, (_, id)) in &self.image.nodes {
            (*b..b + 4).for_each(|b| assert_eq!(self.medium[&b], *id, "foreign bytes in node block {b}"));
        }
    }

    fn check(&self) {
        let counts = self.alloc.free_counts();
        let placed: u64 = self.placed.iter().map(|e| e.blocks).sum();
        let owned = (self.image.data.len() + 4 * self.image.nodes.len()) as u64;
        assert_eq!(counts.pending_data, self.pending.len() as u64);
        assert_eq!(counts.pending_nodes, self.deferred.len() as u64);
        assert_eq!(counts.owned_free, counts.total - owned);
        let busy = owned + placed + counts.pending_data + 4 * (counts.pool + counts.pending_nodes);
        assert_eq!(counts.free, counts.total - busy);
        assert_eq!(counts.reserved, self.reservations.iter().map(|r| r.blocks()).sum::<u64>());
        assert!(counts.reserved <= counts.free && counts.promised_nodes == 0);
        for cell in self.alloc.cells.iter() {
            cell.lock().check();
        }
    }

    fn step(&mut self, op: Op) {
        let count = self.reservations.len();
        match op {
            Op::Place { goal, want, reservation } => self.place(goal, want, reservation),
            Op::Apply { which, part } => {
                if let Some(e) = self.take_placed(which, part) {
                    self.apply(e);
                }
            }
            Op::Release { which, part } => {
                if let Some(e) = self.take_placed(which, part) {
                    self.alloc.release_data(e);
                }
            }
            Op::Free { which, from, blocks } => self.free_some(which, from, blocks),
            Op::Durable { behind } => self.durable(self.head.saturating_sub(behind as u64)),
            Op::Reserve { blocks } => {
                let available = self.alloc.available_data();
                match self.alloc.reserve_data(blocks as u64) {
                    Ok(r) => self.reservations.push(r),
                    Err(Error::NoSpace) => assert!(available < blocks as u64, "{available} were available"),
                    Err(e) => panic!("{e}"),
                }
            }
            Op::Split { which, blocks } if count > 0 => {
                let part = self.reservations[which as usize % count].split(blocks as u64);
                self.reservations[(which as usize + 1) % count].merge(part);
            }
            Op::Drop { which } if count > 0 => drop(self.reservations.swap_remove(which as usize % count)),
            Op::Nodes { reclaim, reserve, copies, grow, seed } => {
                let class = if reclaim { NodeClass::Reclaim } else { NodeClass::Normal };
                self.nodes(class, reserve, copies, grow, seed);
            }
            Op::Freeze => self.freeze(),
            Op::Finish { fail } => self.finish(fail),
            Op::Crash { lose, copies, seed } => self.crash(lose, copies, seed),
            Op::Split { .. } | Op::Drop { .. } => {}
        }
        self.check();
    }

    /// Checks that all promises can be kept, to the last block.
    fn redeem(&mut self) {
        for mut r in std::mem::take(&mut self.reservations) {
            while r.blocks() > 0 {
                let e = self.alloc.alloc_data(BlockNo(0), r.blocks(), Some(&mut r)).unwrap();
                self.write(e);
                self.placed.push(e);
            }
        }
        self.check();
    }
}

fn run(groups: u64, ops: Vec<Op>) {
    let mut model = Model::new(groups);
    ops.into_iter().for_each(|op| model.step(op));
    model.redeem();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_small_image_behaves(ops in proptest::collection::vec(op(), 1..200)) {
        run(1, ops);
    }

    #[test]
    fn many_groups_behave(ops in proptest::collection::vec(op(), 1..60)) {
        run(2, ops);
    }
}
