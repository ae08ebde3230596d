//! The models of block devices: the states of a device that a crash may leave.

use kedge_crash::loops::DEVICE_FILE;
use kedge_crash::trace::Space;
use kedge_crash::{Call, Event, History, Model, Pick, Recipe, Torn, Trace};
use std::collections::BTreeSet;

const DEVICE: u64 = 2;
const PAGE: usize = 4096;

fn trace(calls: Vec<Call>) -> Trace {
    let name = DEVICE_FILE.as_bytes().to_vec();
    let create = Call::Create { dir: 1, name, ino: DEVICE, mode: 0o100600, uid: 0, gid: 0, target: None };
    let size = Call::Truncate { ino: DEVICE, size: 4 * PAGE as u64 };
    let start = [create, size, write(0, b'a'), Call::Device { ino: DEVICE }, Call::Baseline];
    let event = |call| Event { time: 0, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() };
    Trace { events: start.into_iter().chain(calls).map(event).collect() }
}

fn write(page: usize, byte: u8) -> Call {
    Call::Write { ino: DEVICE, offset: (page * PAGE) as u64, data: vec![byte; PAGE], mapped: false }
}

fn flush(since: u64) -> Call {
    Call::Fsync { ino: DEVICE, datasync: false, since }
}

/// The first bytes of all pages, in every state that keeps some of the pending edits.
fn every_choice(trace: &Trace, model: &str) -> BTreeSet<String> {
    let history = History::new(trace, Model::by_name(model).unwrap());
    let mut seen = BTreeSet::new();
    for at in history.points() {
        let pending: Vec<u32> = history.pending(at).collect();
        for choice in 0..1u32 << pending.len() {
            let kept = pending.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1).map(|(_, n)| *n);
            seen.insert(heads(&history, &Recipe::new(at, Pick::Keep(kept.collect()))));
        }
    }
    seen
}

fn heads(history: &History, recipe: &Recipe) -> String {
    let bytes = history.state(recipe).content(DEVICE_FILE.as_bytes()).unwrap();
    assert_eq!(bytes.len(), 4 * PAGE, "a device has one size");
    bytes.chunks(PAGE).map(|page| if page[0] == 0 { '0' } else { char::from(page[0]) }).collect()
}

#[test]
fn any_of_the_writes_since_the_last_flush_may_be_lost() {
    let trace = trace(vec![write(1, b'b'), write(2, b'c'), flush(7), write(0, b'd'), write(3, b'e')]);
    let wanted = ["a000", "ab00", "a0c0", "abc0", "dbc0", "abce", "dbce"].map(str::to_owned);
    assert_eq!(every_choice(&trace, "disk"), BTreeSet::from(wanted));
    assert_eq!(every_choice(&trace, "disk-4k"), every_choice(&trace, "disk"));
}

/// A discard is only one more write and orders no other writes.
#[test]
fn a_discard_can_be_lost_while_a_later_write_survives() {
    let punch = Call::Allocate { ino: DEVICE, how: Space::Punch, offset: 0, len: 2 * PAGE as u64 };
    let trace = trace(vec![punch, write(1, b'b'), write(2, b'c')]);
    let seen = every_choice(&trace, "disk");
    for state in ["a000", "0000", "ab00", "0b00", "a0c0", "00c0", "abc0", "0bc0"] {
        assert!(seen.contains(state), "{state}: {seen:?}");
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn a_page_is_torn_at_sectors_and_garbled_only_where_the_model_says_so() {
    let trace = trace(vec![write(1, b'b')]);
    let page = |model: &str, torn: &str| {
        let history = History::new(&trace, Model::by_name(model).unwrap());
        let recipe: Recipe = format!("6.{torn}").parse().unwrap();
        assert_eq!(recipe.to_string(), format!("6.{torn}"));
        history.state(&recipe).content(DEVICE_FILE.as_bytes()).unwrap()[PAGE..2 * PAGE].to_vec()
    };
    let sectors = |page: &[u8]| -> String {
        let of = |sector: &[u8]| match sector.iter().all(|byte| *byte == sector[0]) {
            true => {
                if sector[0] == 0 {
                    '0'
                } else {
                    char::from(sector[0])
                }
            }
            false => '?',
        };
        page.chunks(512).map(of).collect()
    };
    assert_eq!(sectors(&page("disk", "torn-0-0-3")), "bbb00000");
    assert_eq!(sectors(&page("disk-4k", "torn-0-0-3")), "bbbbbbbb", "its sectors are not torn");
    assert_eq!(sectors(&page("disk-garbage", "garbled-0-2-3")), "bb?00000");
    assert_eq!(page("disk-garbage", "garbled-0-2-3"), page("disk-garbage", "garbled-0-2-3"));
    assert_eq!(sectors(&page("disk", "garbled-0-2-3")), "bbbbbbbb");
    assert_ne!(Torn::new(0, 0..1), Torn::garbled(0, 0..1));
}
