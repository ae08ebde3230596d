use super::*;
use Decision::*;

fn all_facts() -> Vec<Facts> {
    let flags = [false, true];
    let mut out = Vec::new();
    for header in flags {
        for crc in flags {
            for epoch in [Ordering::Less, Ordering::Equal, Ordering::Greater] {
                for lap in [Lap::Other, Lap::Expected, Lap::Later] {
                    for bits in 0..8 {
                        let [tail_above_slot, frames, durable_above_stop] = [1, 2, 4].map(|b| bits & b != 0);
                        out.push(Facts {
                            header,
                            crc,
                            epoch,
                            lap,
                            tail_above_slot,
                            frames,
                            durable_above_stop,
                        });
                    }
                }
            }
        }
    }
    out
}

#[test]
fn every_combination_of_facts_matches_exactly_one_row() {
    assert_eq!(all_facts().len(), 288);
    for facts in all_facts() {
        for table in [&AT_EXPECTED, &BEYOND_STOP] {
            assert_eq!(table.iter().filter(|row| row.matches(&facts)).count(), 1, "{facts:?}");
        }
    }
}

/// The tables in the module's head and the tables in the code agree on label, cells and decision of
/// each row.
#[test]
fn rows_are_documented_under_their_labels() {
    let head = include_str!("scan.rs").lines().take_while(|line| line.starts_with("//!"));
    let documented: Vec<Vec<&str>> = head
        .filter_map(|line| line.strip_prefix("//! | @"))
        .map(|row| row.trim_end_matches('|').split('|').map(str::trim).collect())
        .collect();
    let rows: Vec<&Row> = AT_EXPECTED.iter().chain(&BEYOND_STOP).collect();
    assert_eq!(documented.len(), rows.len());
    for (i, (cells, row)) in documented.iter().zip(rows).enumerate() {
        let behind = i >= AT_EXPECTED.len();
        let yes = |fact, yes: &'static str, no: &'static str| match fact {
            None => "",
            Some(true) => yes,
            Some(false) => no,
        };
        let last = if behind {
            yes(row.durable_above_stop, "above stop", "not above it")
        } else {
            yes(row.frames, "ok", "bad")
        };
        let epoch = row.epoch.map_or("", |epoch| match epoch {
            Ordering::Greater => "newer",
            Ordering::Less => "older",
            Ordering::Equal => "same",
        });
        let lap = row.lap.map_or("", |lap| match lap {
            Lap::Other => "other",
            Lap::Later => "later lap",
            Lap::Expected => "expected",
        });
        let tail = yes(row.tail_above_slot, "above slot's", "fine");
        let header = if row.header { "yes" } else { "no" };
        let want = [header, yes(row.crc, "ok", "no"), epoch, lap, tail, last];
        assert_eq!(cells[0], row.label.to_string());
        assert_eq!(row.label, char::from(b'A' + i as u8));
        assert_eq!(cells[1..7], want, "@{}", row.label);
        let word = match row.then {
            Take => "take",
            Stop(_) => "stop",
            Nothing => "nothing",
            NewerSlotLost | BadFrames | DurableWriteLost => "corrupt",
        };
        assert!(cells[7].starts_with(word), "@{}: {}", row.label, cells[7]);
    }
}

#[test]
fn the_tables_decide_what_the_rules_say() {
    for facts in all_facts() {
        let trusted = facts.header && facts.crc;
        let same = trusted && facts.epoch == Ordering::Equal;
        let slot_lost = trusted && facts.epoch == Ordering::Greater
            || same && (facts.lap == Lap::Later || facts.lap == Lap::Expected && facts.tail_above_slot);
        let in_place = same && facts.lap == Lap::Expected && !facts.tail_above_slot;

        let at = decide(&AT_EXPECTED, &facts).then;
        assert_eq!(at == NewerSlotLost, slot_lost, "{facts:?}");
        assert_eq!(at == Take, in_place && facts.frames, "{facts:?}");
        assert_eq!(at == BadFrames, in_place && !facts.frames, "{facts:?}");
        assert!(!matches!(at, Nothing | DurableWriteLost), "{facts:?}");
        match at {
            Stop(StopReason::NoWrite) => assert!(!facts.header),
            Stop(StopReason::Torn) => assert!(facts.header && !facts.crc),
            Stop(StopReason::OlderEpoch) => assert!(trusted && facts.epoch == Ordering::Less),
            Stop(StopReason::OlderLap) => assert!(same && facts.lap == Lap::Other),
            Stop(StopReason::RingEnd) => panic!("not a fact"),
            _ => {}
        }

        let behind = decide(&BEYOND_STOP, &facts).then;
        assert_eq!(behind == NewerSlotLost, slot_lost, "{facts:?}");
        assert_eq!(behind == DurableWriteLost, in_place && facts.durable_above_stop, "{facts:?}");
        assert!(matches!(behind, NewerSlotLost | DurableWriteLost | Nothing), "{facts:?}");
    }
}

fn header(payload_bytes: u32, records: u32) -> WriteHeader {
    WriteHeader {
        epoch: Epoch(1),
        lsn: Lsn(0),
        blocks: 1,
        tail_lsn: Lsn(0),
        durable_lsn: Lsn(0),
        payload_bytes,
        records,
    }
}

#[test]
fn frames_must_divide_the_payload_exactly() {
    let mut write = vec![0; BLOCK_SIZE];
    write[HEADER_SIZE..HEADER_SIZE + 7].copy_from_slice(&[3, 0, 0, 0, 7, 8, 9]);
    write[HEADER_SIZE + 7..HEADER_SIZE + 12].copy_from_slice(&[1, 0, 0, 0, 5]);
    let good = header(12, 2);
    assert!(frames_divide(&good, &write));
    let found: Vec<_> = frames(&good, &write).collect();
    let at = HEADER_SIZE as u64;
    assert_eq!(found, [(Lsn(at), &[7u8, 8, 9][..]), (Lsn(at + 7), &[5][..])]);
    assert!(frames_divide(&header(0, 0), &write), "no records divide no payload");
    // One byte more, one byte less, a rest shorter than a frame header, an empty record, a wrong
    // number of records.
    for (payload, records) in [(11, 2), (13, 2), (9, 1), (16, 3), (12, 1), (12, 3), (7, 2)] {
        assert!(!frames_divide(&header(payload, records), &write), "{payload} bytes, {records} records");
    }
    write[HEADER_SIZE + 7..HEADER_SIZE + 11].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(!frames_divide(&good, &write), "a length beyond everything");
}
