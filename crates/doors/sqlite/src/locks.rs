//! The locks of a database, as SQLite defines them: any number of SHARED, one RESERVED beside
//! these, PENDING, which admits no further SHARED, and EXCLUSIVE without any other.

/// The level of a connection's lock, in the order of SQLite's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Level {
    #[default]
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

impl Level {
    pub(crate) fn of(number: i32) -> Option<Level> {
        [Level::None, Level::Shared, Level::Reserved, Level::Pending, Level::Exclusive]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// The locks of one file.
#[derive(Default, Debug)]
pub(crate) struct Locks {
    /// The number of connections with at least SHARED.
    shared: usize,
    /// Whether a connection has RESERVED or more.
    reserved: bool,
    /// Whether the connection with RESERVED or more has PENDING or EXCLUSIVE.
    pending: bool,
}

impl Locks {
    /// Raises the lock of a connection from `have`. Returns the level that the connection has
    /// afterwards, which is below `want` if another connection is in the way.
    pub(crate) fn raise(&mut self, have: Level, want: Level) -> Level {
        if want <= have {
            return have;
        }
        let mut level = have;
        if level == Level::None {
            if self.pending {
                return level;
            }
            self.shared += 1;
            level = Level::Shared;
        }
        if want >= Level::Reserved && level == Level::Shared {
            if self.reserved {
                return level;
            }
            self.reserved = true;
            level = Level::Reserved;
        }
        if want >= Level::Pending {
            self.pending = true;
            level = Level::Pending;
        }
        if want == Level::Exclusive && self.shared == 1 {
            level = Level::Exclusive;
        }
        level
    }

    /// Lowers the lock of a connection from `have` to SHARED or NONE.
    pub(crate) fn lower(&mut self, have: Level, want: Level) {
        if have >= Level::Reserved && want < Level::Reserved {
            (self.reserved, self.pending) = (false, false);
        }
        if have >= Level::Shared && want == Level::None {
            self.shared -= 1;
        }
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved
    }
}

/// The locks of the WAL index: each is free, shared by some connections, or exclusive.
#[derive(Default, Debug)]
pub(crate) struct Slots([Slot; SLOTS]);

/// The number of locks of a WAL index.
pub(crate) const SLOTS: usize = 8;

#[derive(Default, Debug, Clone, Copy)]
struct Slot {
    shared: u32,
    exclusive: bool,
}

/// The locks of the WAL index that a connection holds, as bit masks.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct Held {
    shared: u8,
    exclusive: u8,
}

impl Slots {
    /// Takes the slots of `mask` for a connection. Returns `false`, and takes none, if one is not
    /// free.
    pub(crate) fn take(&mut self, held: &mut Held, mask: u8, exclusive: bool) -> bool {
        let slots = || (0..SLOTS).filter(|slot| mask & 1 << slot != 0);
        let free = slots().all(|at| {
            let slot = self.0[at];
            let own_shared = u32::from(held.shared & 1 << at != 0);
            let own = held.exclusive & 1 << at != 0;
            match exclusive {
                true => own || !slot.exclusive && slot.shared == own_shared,
                false => own || !slot.exclusive,
            }
        });
        if !free {
            return false;
        }
        for at in slots() {
            let bit = 1 << at;
            if exclusive && held.exclusive & bit == 0 {
                self.0[at].exclusive = true;
                held.exclusive |= bit;
            } else if !exclusive && held.shared & bit == 0 {
                self.0[at].shared += 1;
                held.shared |= bit;
            }
        }
        true
    }

    /// Releases those slots of `mask` that the connection holds.
    pub(crate) fn release(&mut self, held: &mut Held, mask: u8) {
        for at in 0..SLOTS {
            let bit = 1 << at;
            if mask & bit == 0 {
                continue;
            }
            if held.exclusive & bit != 0 {
                self.0[at].exclusive = false;
                held.exclusive &= !bit;
            }
            if held.shared & bit != 0 {
                self.0[at].shared -= 1;
                held.shared &= !bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_beside_readers_and_alone_to_change_the_file() {
        let mut locks = Locks::default();
        let reader = locks.raise(Level::None, Level::Shared);
        let writer = locks.raise(Level::None, Level::Shared);
        let writer = locks.raise(writer, Level::Reserved);
        assert_eq!((reader, writer), (Level::Shared, Level::Reserved));
        assert_eq!(locks.raise(reader, Level::Reserved), Level::Shared, "one has it");
        assert!(locks.is_reserved());
        let writer = locks.raise(writer, Level::Exclusive);
        assert_eq!(writer, Level::Pending, "a reader is there");
        assert_eq!(locks.raise(Level::None, Level::Shared), Level::None, "no further reader");
        locks.lower(reader, Level::None);
        let writer = locks.raise(writer, Level::Exclusive);
        assert_eq!(writer, Level::Exclusive);
        assert_eq!(locks.raise(Level::None, Level::Shared), Level::None);
        locks.lower(writer, Level::Shared);
        assert_eq!(locks.raise(Level::None, Level::Shared), Level::Shared);
        locks.lower(Level::Shared, Level::None);
        locks.lower(Level::Shared, Level::None);
        // A connection goes from SHARED directly to EXCLUSIVE when it rolls a hot journal back.
        let level = locks.raise(Level::None, Level::Shared);
        assert_eq!(locks.raise(level, Level::Exclusive), Level::Exclusive);
        assert_eq!(Level::of(4), Some(Level::Exclusive));
        assert_eq!((Level::of(5), Level::of(-1)), (None, None));
    }

    #[test]
    fn slots_are_taken_together_or_not_at_all() {
        let mut slots = Slots::default();
        let (mut a, mut b) = (Held::default(), Held::default());
        assert!(slots.take(&mut a, 0b0110, false));
        assert!(slots.take(&mut b, 0b0010, false));
        assert!(!slots.take(&mut b, 0b1100, true), "slot 2 is shared");
        assert!(slots.take(&mut b, 0b1000, true), "so slot 3 was not taken");
        assert!(!slots.take(&mut a, 0b1000, false));
        slots.release(&mut a, 0b0100);
        assert!(slots.take(&mut b, 0b0100, true));
        slots.release(&mut b, 0xff);
        assert!(slots.take(&mut a, 0b1101, true));
        assert!(slots.take(&mut a, 0b0010, true), "its own shared slot does not hinder it");
        slots.release(&mut a, 0xff);
        assert!(slots.take(&mut b, 0xff, true));
    }
}
