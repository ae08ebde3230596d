#![allow(clippy::unwrap_used)]

use super::*;
use crate::disk::Disk;
use crate::explore::{Plan, SearchOrder};
use crate::model::MODELS;
use crate::page::PAGE;
use crate::trace::Space;
use std::collections::BTreeSet;

/// Random calls of a program, made from a seed.
fn random_trace(seed: u64, calls: usize) -> Trace {
    let mut rng = SmallRng::seed_from_u64(seed);
    let disk = Disk::new();
    disk.create_dir("d").unwrap();
    for _ in 0..rng.random_range(5..calls) {
        let name = |rng: &mut SmallRng| ["a", "b", "c", "d/a", "d/b"][rng.random_range(0..5usize)];
        let path = name(&mut rng);
        // Most of these may fail in the current tree; a failed call changes nothing.
        let _refused = match rng.random_range(0..12) {
            0 | 1 => disk.create(path).map(|_| ()),
            2 | 3 => disk.open(path).and_then(|f| {
                f.write_at(
                    rng.random_range(0..9000),
                    &vec![rng.random_range(1..255); rng.random_range(1..9000)],
                )
            }),
            4 => disk.open(path).and_then(|f| f.set_len(rng.random_range(0..9000))),
            5 => disk.rename(path, name(&mut rng)),
            6 => disk.hard_link(path, name(&mut rng)),
            7 => disk.remove(path),
            8 => disk.sync(path),
            9 => disk.open(path).and_then(|f| {
                let zero = Space::Zero { keep_size: rng.random_bool(0.5) };
                let how = if rng.random_bool(0.5) { Space::Punch } else { zero };
                f.allocate(how, rng.random_range(0..9000), rng.random_range(1..9000))
            }),
            10 => disk.open(path).and_then(|f| {
                let how = if rng.random_bool(0.5) { Space::Collapse } else { Space::Insert };
                f.allocate(how, PAGE as u64 * rng.random_range(0..2), PAGE as u64)
            }),
            _ => disk.sync(["", "d"][rng.random_range(0..2usize)]),
        };
    }
    disk.trace()
}

/// The systematic recipes and some random ones.
fn recipes(trace: &Trace, history: &History, seed: u64, random: usize) -> Vec<Recipe> {
    let order = if seed.is_multiple_of(2) { SearchOrder::Turns } else { SearchOrder::Updates };
    let mut plan = Plan::new(trace, history, seed, order);
    let mut recipes = Vec::new();
    while !plan.is_random() {
        recipes.push(plan.next());
    }
    recipes.extend((0..random).map(|_| plan.next()));
    assert_eq!(plan.finish(), ((recipes.len() - random) as u64, 0));
    recipes
}

#[test]
fn every_state_that_is_tried_is_legal() {
    for seed in 0..60 {
        let trace = random_trace(seed, 60);
        for model in MODELS {
            let history = History::new(&trace, model);
            for recipe in recipes(&trace, &history, seed, 50).into_iter().take(650) {
                let set = history.set(&recipe);
                for n in 0..history.upto(recipe.at) as u32 {
                    let durable = history.is_durable(n, recipe.at);
                    assert!(
                        set.has(n) || !durable,
                        "seed {seed} {} {recipe}: durable edit {n} is lost",
                        model.name
                    );
                    let micro = &history.micros[n as usize];
                    let mut needs = micro.needs.iter().chain(micro.after.iter().filter(|_| !durable));
                    assert!(
                        !set.has(n) || needs.all(|d| set.has(*d)),
                        "seed {seed} {} {recipe}: edit {n} lacks what it needs",
                        model.name
                    );
                }
            }
        }
    }
}

/// The state of a recipe by the simplest code: the requested edits with all that they need, applied
/// in order.
fn slowly(history: &History, recipe: &Recipe) -> (Vec<u32>, State) {
    let len = history.upto(recipe.at) as u32;
    let is_behind = |n: u32, set: &BTreeSet<u32>| history.behind(n).all(|d| set.contains(&d));
    let without = |lost: &[u32]| {
        let mut set = BTreeSet::new();
        for n in (0..len).filter(|n| !lost.contains(n)) {
            if is_behind(n, &set) {
                set.insert(n);
            }
        }
        set.extend((0..len).filter(|n| history.is_durable(*n, recipe.at)));
        set
    };
    let with = |kept: &[u32]| {
        let mut set: BTreeSet<u32> = kept.iter().copied().collect();
        for n in (0..len).rev().filter(|n| set.contains(n)).collect::<Vec<_>>() {
            let mut todo = vec![n];
            while let Some(n) = todo.pop() {
                todo.extend(history.behind(n).filter(|d| set.insert(*d)));
            }
        }
        set.extend((0..len).filter(|n| history.is_durable(*n, recipe.at)));
        set
    };
    let mut set = match &recipe.pick {
        Pick::All => (0..len).collect(),
        Pick::Durable => with(&[]),
        Pick::Lose(lost) => without(lost),
        Pick::Keep(kept) => with(kept),
        // This test does not cover which edits a sample picks.
        Pick::Sample(_) => history.set(recipe).iter().collect(),
    };
    let torn = recipe.torn.as_ref().filter(|t| history.may_tear(t.micro, recipe.at));
    if let Some(torn) = torn {
        let whole = without(&[torn.micro]);
        set.retain(|n| whole.contains(n));
    }
    let mut state = history.base();
    for n in 0..len {
        let edit = &history.micros[n as usize].edit;
        match torn.filter(|t| t.micro == n) {
            Some(torn) => state.apply_torn(edit, torn.sectors.clone()),
            None if set.contains(&n) => state.apply(edit),
            None => {}
        }
    }
    (set.into_iter().collect(), state)
}

#[test]
fn a_state_is_made_of_its_edits_and_no_others() {
    let mut compared = 0;
    for seed in 0..40 {
        // Some traces are longer than the distance between two copies of the tree.
        let trace = random_trace(seed, if seed % 4 == 0 { 300 } else { 60 });
        for model in MODELS {
            let history = History::new(&trace, model);
            let recipes = recipes(&trace, &history, seed, 40);
            let planned = recipes.len() - 40;
            let step = planned.div_ceil(60).max(1);
            let chosen = recipes.into_iter().enumerate().filter(|(n, _)| n % step == 0 || *n >= planned);
            for (_, recipe) in chosen {
                let (set, state) = slowly(&history, &recipe);
                let name = format!("seed {seed} {} {recipe}", model.name);
                if recipe.torn.is_none() {
                    assert_eq!(history.set(&recipe).iter().collect::<Vec<_>>(), set, "{name}");
                }
                assert_eq!(history.state(&recipe).digest(), state.digest(), "{name}");
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared} states");
}

#[test]
fn the_last_state_is_what_the_program_saw() {
    for seed in 0..60 {
        let trace = random_trace(seed, 60);
        for model in MODELS {
            let history = History::new(&trace, model);
            let whole = history.state(&Recipe::new(*history.points().end(), Pick::All));
            let strict = History::new(&trace, crate::model::STRICT);
            let other = strict.state(&Recipe::new(*strict.points().end(), Pick::All));
            assert_eq!(whole.digest(), other.digest(), "seed {seed} {}", model.name);
        }
    }
}

#[test]
fn names_of_states_are_read_back() {
    let trace = random_trace(1, 60);
    let history = History::new(&trace, Model::by_name("posix").unwrap());
    for recipe in recipes(&trace, &history, 1, 100) {
        assert_eq!(recipe.to_string().parse::<Recipe>().unwrap(), recipe);
    }
    for bad in ["", "x", "1.lose-a", "1.torn-1-3-2", "1.torn-1-0-9", "1.who", "1.seed-", "-1"] {
        assert!(bad.parse::<Recipe>().is_err(), "{bad}");
    }
}

/// The contents of `f` after a crash at the end, in all states tried: `-` if the file is missing,
/// else its bytes without repetitions.
fn after_crash(model: &str, run: impl FnOnce(&Disk)) -> BTreeSet<String> {
    let disk = Disk::new();
    run(&disk);
    let trace = disk.trace();
    let history = History::new(&trace, Model::by_name(model).unwrap());
    let end = *history.points().end();
    let mut found = BTreeSet::new();
    for recipe in recipes(&trace, &history, 1, 300) {
        if recipe.at == end && recipe.torn.is_none() {
            let shown = history.state(&recipe).content(b"f").map_or("-".to_owned(), |bytes| {
                let mut bytes: Vec<u8> = bytes.iter().map(|b| if *b == 0 { b'0' } else { *b }).collect();
                bytes.dedup();
                String::from_utf8(bytes).unwrap()
            });
            found.insert(shown);
        }
    }
    found
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

fn old_file(disk: &Disk) {
    disk.create("f").unwrap().write_at(0, b"o").unwrap();
    disk.settle();
}

#[test]
fn a_new_file_whose_fsync_returned() {
    let run = |disk: &Disk| {
        disk.create("f").unwrap().write_at(0, b"n").unwrap();
        disk.sync("f").unwrap();
    };
    for model in ["strict", "kedgefs", "ext4", "xfs", "btrfs", "ext4-writeback"] {
        assert_eq!(after_crash(model, run), set(&["n"]), "{model}");
    }
    assert_eq!(after_crash("posix", run), set(&["-", "n"]), "its name needs an fsync of the directory");
}

#[test]
fn a_new_file_that_nobody_synced() {
    let run = |disk: &Disk| disk.create("f").unwrap().write_at(0, b"n").unwrap();
    for model in ["strict", "kedgefs", "ext4-ordered", "xfs", "btrfs"] {
        assert_eq!(after_crash(model, run), set(&["-", "", "n"]), "{model}");
    }
    for model in ["ext4", "ext4-writeback", "posix"] {
        assert_eq!(after_crash(model, run), set(&["-", "", "0", "n"]), "{model}: the size without the byte");
    }
}

#[test]
fn replace_by_rename_without_fsync() {
    let run = |disk: &Disk| {
        old_file(disk);
        disk.create("t").unwrap().write_at(0, b"n").unwrap();
        disk.rename("t", "f").unwrap();
    };
    assert_eq!(after_crash("ext4-ordered", run), set(&["o", "n"]), "the bytes come with the rename");
    for model in ["kedgefs", "xfs", "btrfs"] {
        assert_eq!(after_crash(model, run), set(&["o", "", "n"]), "{model}");
    }
    for model in ["ext4", "ext4-writeback", "posix"] {
        assert_eq!(after_crash(model, run), set(&["o", "", "0", "n"]), "{model}");
    }
}

#[test]
fn appended_pages() {
    let run = |disk: &Disk| {
        old_file(disk);
        let file = disk.open("f").unwrap();
        file.write_at(4096, &[b'a'; 4096]).unwrap();
        file.write_at(8192, &[b'b'; 4096]).unwrap();
    };
    let in_order = set(&["o", "o0a", "o0ab"]);
    for model in ["strict", "kedgefs"] {
        assert_eq!(after_crash(model, run), in_order, "{model}");
    }
    for model in ["ext4-ordered", "xfs", "btrfs"] {
        assert_eq!(after_crash(model, run), set(&["o", "o0a", "o0ab", "o0b"]), "{model}");
    }
    assert!(after_crash("posix", run).contains("o0"), "sizes without bytes");
}

#[test]
fn a_longer_file_in_the_block_that_it_has() {
    let appended = |disk: &Disk| {
        old_file(disk);
        disk.open("f").unwrap().write_at(1, b"a").unwrap();
    };
    for model in ["strict", "kedgefs", "xfs", "btrfs"] {
        assert_eq!(after_crash(model, appended), set(&["o", "oa"]), "{model}");
    }
    assert_eq!(after_crash("ext4-ordered", appended), set(&["o", "o0", "oa"]), "no block is allocated");
    let twice = |disk: &Disk| {
        let file = disk.create("f").unwrap();
        file.write_at(0, b"n").unwrap();
        file.write_at(600, b"a").unwrap();
        disk.sync(".").unwrap();
    };
    let found = after_crash("ext4-ordered", twice);
    assert!(found.contains("n0"), "the second size in the block that the first write took: {found:?}");
    assert!(!found.contains("0"), "no size before the bytes that took the block: {found:?}");
    let cut = |disk: &Disk| {
        let file = disk.create("f").unwrap();
        file.write_at(0, b"nn").unwrap();
        file.set_len(0).unwrap();
        file.write_at(0, b"m").unwrap();
    };
    let found = after_crash("ext4-ordered", cut);
    assert!(!found.contains("0"), "a file that is cut to nothing has no block: {found:?}");
}

/// The contents of `f` in all legal states at the end, as bytes without repetitions.
fn every_content(model: &str, run: impl FnOnce(&Disk)) -> BTreeSet<String> {
    let disk = Disk::new();
    run(&disk);
    let trace = disk.trace();
    let history = History::new(&trace, Model::by_name(model).unwrap());
    let mut contents = BTreeSet::new();
    let mut legal = BTreeSet::new();
    let pending: Vec<u32> = history.pending(*history.points().end()).collect();
    for choice in 0..1u32 << pending.len() {
        let kept = pending.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1);
        let pick = Pick::Keep(kept.map(|(_, n)| *n).collect());
        let state = history.state(&Recipe::new(*history.points().end(), pick));
        let mut bytes = state.content(b"f").unwrap();
        bytes.dedup();
        legal.insert(state.digest());
        contents.insert(bytes.iter().map(|b| if *b == 0 { '0' } else { char::from(*b) }).collect());
    }
    // The enumeration has all of these states; if pages are never torn, it has no others.
    let every = history.every(*history.points().end());
    assert!(!every.is_cut);
    assert!(legal.iter().all(|digest| every.states.contains(digest)), "{model}");
    if !history.model.torn_pages {
        assert_eq!(every.states.len(), legal.len(), "{model}");
    }
    contents
}

/// Observed on ext4 and XFS: a page with two writes may have only the sectors of the second write.
#[test]
fn two_writes_in_one_page_are_independent_where_pages_are_torn() {
    let run = |at: u64| {
        move |disk: &Disk| {
            disk.create("f").unwrap().write_at(0, &[b'o'; 4096]).unwrap();
            disk.settle();
            let file = disk.open("f").unwrap();
            file.write_at(0, b"a").unwrap();
            file.write_at(at, b"b").unwrap();
        }
    };
    for model in ["kedgefs", "ext4", "xfs", "posix"] {
        assert!(every_content(model, run(3000)).contains("obo"), "{model}");
        assert!(!every_content(model, run(300)).contains("obo"), "{model}: one sector is never torn");
    }
    for model in ["strict", "btrfs"] {
        assert!(!every_content(model, run(3000)).contains("obo"), "{model}");
    }
}

/// The page that a size shows is written as a whole before the size, with the bytes of all writes.
#[test]
fn a_size_needs_all_bytes_of_its_page() {
    let appended = |disk: &Disk| {
        let file = disk.create("f").unwrap();
        disk.settle();
        file.write_at(0, &[b'a'; 512]).unwrap();
        file.write_at(512, &[b'b'; 512]).unwrap();
    };
    let replaced = |disk: &Disk| {
        old_file(disk);
        let file = disk.open("f").unwrap();
        file.write_at(0, b"a").unwrap();
        file.write_at(1000, &[b'b'; 1024]).unwrap();
        file.write_at(0, b"c").unwrap();
        file.write_at(3000, &[b'd'; 100]).unwrap();
    };
    for model in ["strict", "kedgefs", "xfs", "btrfs"] {
        assert_eq!(every_content(model, appended), set(&["", "a", "ab"]), "{model}");
        let found = every_content(model, replaced);
        let whole = |text: &&String| text.starts_with('c') || !text.contains('d') && !text.starts_with("o0");
        assert!(found.iter().all(|text| whole(&text)), "{model}: {found:?}");
        assert!(found.contains("c0b0d"), "{model}: {found:?}");
    }
    assert!(every_content("ext4", appended).contains("0b"), "no block is allocated");
}

/// Observed on ext4: the zeros past the new end are written before the journal has the new size.
#[test]
fn a_cut_may_show_its_zeros_first() {
    let run = |disk: &Disk| {
        disk.create("f").unwrap().write_at(0, &[b'o'; 8192]).unwrap();
        disk.settle();
        disk.open("f").unwrap().set_len(100).unwrap();
    };
    for model in ["ext4", "ext4-ordered", "ext4-writeback", "xfs", "posix"] {
        assert_eq!(every_content(model, run), set(&["o", "o0o"]), "{model}");
    }
    for model in ["strict", "kedgefs", "btrfs"] {
        assert_eq!(every_content(model, run), set(&["o"]), "{model}");
    }
}

/// A file of four pages `o`, a call on it, and a write of `n` to its first page.
fn overwritten_after(call: impl Fn(u64) -> Call) -> Trace {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, &[b'o'; 4 * PAGE]).unwrap();
    disk.settle();
    let mut trace = disk.trace();
    let ino = ino_of(&trace, b"f");
    let like = trace.events.last().unwrap().clone();
    let write = Call::Write { ino, offset: 0, data: vec![b'n'; PAGE], mapped: false };
    trace.events.extend([call(ino), write].map(|call| crate::Event { call, errno: 0, ..like.clone() }));
    trace
}

fn ino_of(trace: &Trace, wanted: &[u8]) -> u64 {
    let ino = trace.events.iter().find_map(|e| match &e.call {
        Call::Create { ino, name, .. } if name == wanted => Some(*ino),
        _ => None,
    });
    ino.unwrap()
}

/// Whether the end of such a recording may be the old file with the new first page.
fn may_have_the_page_alone(model: Model, call: impl Fn(u64) -> Call) -> bool {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, &[&[b'n'; PAGE][..], &[b'o'; 3 * PAGE]].concat()).unwrap();
    let history = History::new(&overwritten_after(call), model);
    history.every(*history.points().end()).states.contains(&disk.state().digest())
}

/// Observed on ext4 and XFS: fsync writes the page before it commits the truncate or hole.
#[test]
fn a_write_below_a_cut_persists_without_it() {
    let (offset, len) = (PAGE as u64, 3 * PAGE as u64);
    type MakeCall = fn(u64, u64, u64) -> Call;
    let calls: [(&str, MakeCall); 5] = [
        ("cut", |ino, size, _| Call::Truncate { ino, size }),
        ("cut within the next page", |ino, at, _| Call::Truncate { ino, size: at + 100 }),
        ("growth", |ino, _, len| Call::Truncate { ino, size: 4 * len }),
        ("hole", |ino, offset, len| Call::Allocate { ino, how: Space::Punch, offset, len }),
        ("zero range", |ino, offset, len| Call::Allocate {
            ino,
            how: Space::Zero { keep_size: true },
            offset,
            len,
        }),
    ];
    for (what, call) in calls {
        for model in MODELS {
            let found = may_have_the_page_alone(model, |ino| call(ino, offset, len));
            assert_eq!(found, !["strict", "btrfs"].contains(&model.name), "{}: {what}", model.name);
        }
    }
}

/// A write to a block that was removed gets another one, which becomes a part of the file after the
/// removal. A zero range of ext4 and KedgeFS keeps the blocks.
#[test]
fn a_write_inside_a_hole_needs_the_hole() {
    let all = |how| move |ino| Call::Allocate { ino, how, offset: 0, len: 4 * PAGE as u64 };
    for model in MODELS {
        assert!(!may_have_the_page_alone(model, |ino| Call::Truncate { ino, size: 0 }), "{}", model.name);
        assert!(!may_have_the_page_alone(model, all(Space::Punch)), "{}", model.name);
        let keeps_blocks = !["strict", "btrfs", "xfs"].contains(&model.name);
        let found = may_have_the_page_alone(model, all(Space::Zero { keep_size: true }));
        assert_eq!(found, keeps_blocks, "{}", model.name);
    }
}

/// The zeros past a cut, and at the edges of a hole, are in memory and go to the disk with the next
/// write of their page.
#[test]
fn a_write_beside_a_cut_brings_the_zeros_of_its_page() {
    let run = |disk: &Disk| {
        disk.create("f").unwrap().write_at(0, &[b'o'; 2 * PAGE]).unwrap();
        disk.settle();
        let file = disk.open("f").unwrap();
        file.set_len(600).unwrap();
        file.write_at(0, &[b'n'; 100]).unwrap();
        file.write_at(600, &[b'm'; 100]).unwrap();
    };
    for model in ["kedgefs", "ext4", "xfs", "posix"] {
        let found = every_content(model, run);
        assert!(found.contains("nom0o"), "{model}: the page came before the cut: {found:?}");
        assert!(!found.contains("nomo"), "{model}: bytes of one page and no zeros: {found:?}");
    }
}

/// The bytes below a cut are in the page that a later write of the same sector writes.
#[test]
fn a_sector_keeps_its_bytes_below_a_cut() {
    let run = |disk: &Disk| {
        disk.create("f").unwrap();
        disk.settle();
        let file = disk.open("f").unwrap();
        file.write_at(0, &[b'a'; 300]).unwrap();
        file.set_len(100).unwrap();
        file.write_at(100, &[b'b'; 100]).unwrap();
    };
    for model in MODELS {
        let found = every_content(model.name, run);
        assert!(found.contains("ab"), "{}: {found:?}", model.name);
        assert!(!found.contains("0b"), "{}: half a sector: {found:?}", model.name);
    }
}

/// Observed on Btrfs after an fsync of the directory to which the file was moved.
#[test]
fn a_file_moved_to_another_directory_may_keep_its_old_name() {
    let run = |target: &'static str, synced: &'static str| {
        let disk = Disk::new();
        disk.create("f").unwrap();
        disk.create_dir("d").unwrap();
        disk.settle();
        disk.rename("f", target).unwrap();
        disk.sync(synced).unwrap();
        disk.trace()
    };
    let names = |model: Model, trace: &Trace, target: &str| {
        let history = History::new(trace, model);
        let state = history.state(&Recipe::new(*history.points().end(), Pick::Durable));
        (state.find(b"f").is_some(), state.find(target.as_bytes()).is_some())
    };
    for model in MODELS {
        let found = names(model, &run("d/f", "d"), "d/f");
        let may_link = ["btrfs", "posix"].contains(&model.name);
        assert_eq!(found, (may_link, true), "{}: fsync of the new directory", model.name);
        let found = names(model, &run("g", ""), "g");
        assert_eq!(found, (false, true), "{}: inside one directory", model.name);
    }
    let btrfs = Model::by_name("btrfs").unwrap();
    assert_eq!(names(btrfs, &run("d/f", "d/f"), "d/f"), (false, true), "fsync of the file itself");
}

#[test]
fn a_second_fsync_after_a_failed_one_writes_nothing() {
    let run = |fails: bool| {
        let disk = Disk::new();
        disk.create("f").unwrap().write_at(0, b"o").unwrap();
        disk.settle();
        disk.open("f").unwrap().write_at(0, b"n").unwrap();
        disk.sync("f").unwrap();
        disk.sync("f").unwrap();
        let mut trace = disk.trace();
        let first = trace.events.len() - 2;
        trace.events[first].errno = if fails { 5 } else { 0 };
        trace
    };
    for model in MODELS {
        let safe = |trace: &Trace| {
            let history = History::new(trace, model);
            let state = history.state(&Recipe::new(*history.points().end(), Pick::Durable));
            state.content(b"f").unwrap() == b"n"
        };
        assert!(safe(&run(false)), "{}", model.name);
        assert_eq!(safe(&run(true)), ["strict", "kedgefs"].contains(&model.name), "{}", model.name);
    }
}

#[test]
fn an_fsync_of_another_file() {
    let run = |disk: &Disk| {
        old_file(disk);
        disk.rename("f", "g").unwrap();
        disk.create("f").unwrap();
        disk.settle();
        disk.remove("f").unwrap();
        disk.create("x").unwrap().write_at(0, b"x").unwrap();
        disk.sync("x").unwrap();
    };
    for model in ["kedgefs", "ext4", "xfs"] {
        assert_eq!(after_crash(model, run), set(&["-"]), "{model}: one log orders all names");
    }
    for model in ["btrfs", "posix"] {
        assert_eq!(after_crash(model, run), set(&["-", ""]), "{model}: fsync persists its own inode");
    }
}

/// Observed on ext4 and XFS where both writes come in one tick of the clock: the second one has no
/// time stamp, so nothing makes its fsync commit the journal.
#[test]
fn an_fsync_of_a_write_in_place_persists_no_earlier_name() {
    let run = |last: u64, datasync: bool| {
        let disk = Disk::new();
        disk.create("a").unwrap();
        disk.create("f").unwrap().write_at(0, b"o").unwrap();
        disk.settle();
        let file = disk.open("f").unwrap();
        file.write_at(0, b"n").unwrap();
        file.sync_all().unwrap();
        disk.rename("a", "b").unwrap();
        file.write_at(last, b"m").unwrap();
        if datasync { file.sync_data() } else { file.sync_all() }.unwrap();
        disk.trace()
    };
    for model in MODELS {
        let is_lost = |trace: &Trace| {
            let history = History::new(trace, model);
            let state = history.state(&Recipe::new(*history.points().end(), Pick::Durable));
            state.find(b"b").is_none()
        };
        let is_total = model.order == Order::Total;
        for datasync in [false, true] {
            assert_eq!(is_lost(&run(0, datasync)), !is_total, "{}", model.name);
        }
        // A write that extends the file changes its size, and the log orders sizes and names.
        let one_log = model.order == Order::Log;
        assert_eq!(is_lost(&run(1, false)), !is_total && !one_log, "{}: a longer file", model.name);
    }
}

#[test]
fn an_fsync_that_failed_promises_nothing() {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, b"n").unwrap();
    disk.sync("f").unwrap();
    let mut trace = disk.trace();
    trace.events.last_mut().unwrap().errno = 5;
    let history = History::new(&trace, Model::by_name("ext4").unwrap());
    let end = *history.points().end();
    assert_eq!(history.pending(end).count(), history.micros.len());
}

#[test]
fn a_call_after_the_start_of_an_fsync_is_not_covered() {
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    file.write_at(0, b"a").unwrap();
    file.write_at(1, b"b").unwrap();
    file.sync_all().unwrap();
    let mut trace = disk.trace();
    let Call::Fsync { since, .. } = &mut trace.events[3].call else { panic!("an fsync") };
    assert_eq!(*since, 3);
    *since = 2;
    let history = History::new(&trace, Model::by_name("kedgefs").unwrap());
    let state = history.state(&Recipe::new(4, Pick::Durable));
    assert_eq!(state.content(b"f").unwrap(), b"a");
}

/// A page past the old end of a file is torn, and the new size shows it.
#[test]
fn the_list_of_all_states_has_torn_pages_that_a_later_size_shows() {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, &[b'o'; 100]).unwrap();
    disk.settle();
    disk.open("f").unwrap().write_at(0, &[b'n'; 4096]).unwrap();
    let history = History::new(&disk.trace(), Model::by_name("ext4").unwrap());
    let at = *history.points().end();
    let every = history.every(at);
    let micro = (0..history.micros.len() as u32).find(|n| history.may_tear(*n, at)).unwrap();
    let mut sizes = BTreeSet::new();
    for sectors in (0..8).flat_map(|from| (from + 1..=8).map(move |to| from..to)) {
        let recipe = Recipe { at, pick: Pick::All, torn: Some(Torn::new(micro, sectors)) };
        let state = history.state(&recipe);
        let Some((_, node)) = state.find(b"f") else { panic!("{recipe}: no file") };
        let crate::state::Body::File(file) = &node.body else { panic!("{recipe}: no file") };
        sizes.insert(file.size);
        assert!(every.states.contains(&state.digest()), "{recipe}");
    }
    assert_eq!(sizes, [4096].into(), "the size came without the page");
}

/// An msync makes durable the bytes of its pages and no others, and everything else that fdatasync
/// makes durable.
#[test]
fn an_msync_promises_its_range() {
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    file.set_len(3 * PAGE as u64).unwrap();
    file.sync_all().unwrap();
    disk.sync("").unwrap();
    let mut trace = disk.trace();
    let ino = ino_of(&trace, b"f");
    let like = trace.events.last().unwrap().clone();
    let page = PAGE as u64;
    let mut push = |call: Call| {
        trace.events.push(crate::Event { call, errno: 0, ..like.clone() });
        trace.events.len() as u32 - 1
    };
    let mut store = |at: u64| push(Call::Write { ino, offset: at, data: vec![7; 8], mapped: true });
    let [first, second, third] = [0, page + 100, 2 * page].map(&mut store);
    let grown = push(Call::Truncate { ino, size: 4 * page });
    let since = u64::from(grown) + 1;
    // The range is a part of the second page, which msync rounds to the whole page.
    let msync = push(Call::Msync { ino, ranges: vec![(page, page + 8)], since });
    for model in MODELS {
        let history = History::new(&trace, model);
        let is_durable = |event: u32| {
            let mut edits = history.of_event(event).filter(|n| history.micros[*n as usize].edit.is_data());
            edits.all(|n| history.is_durable(n, msync + 1))
        };
        // Only in a total order the first page persists with the second, and the third with the
        // size.
        let is_total = model.order == Order::Total;
        assert_eq!([first, second, third].map(is_durable), [is_total, true, is_total], "{}", model.name);
        assert!(history.of_event(grown).all(|n| !history.micros[n as usize].edit.is_data()));
        let size = history.of_event(grown).next_back().unwrap();
        assert!(history.is_durable(size, msync + 1), "{}: the size", model.name);
    }
}

/// Observed on ext4 and XFS: a write with O_DSYNC to the first page writes no page that was
/// appended before, and the file keeps its old size.
#[test]
fn a_synchronous_write_leaves_the_sizes_of_other_pages() {
    let run = |at: u64| {
        let disk = Disk::new();
        let file = disk.create("f").unwrap();
        file.write_at(0, &[b'o'; PAGE]).unwrap();
        disk.settle();
        file.write_at(PAGE as u64, &[b'n'; 2 * PAGE]).unwrap();
        file.write_durably_at(at, &[b's'; 100]).unwrap();
        disk.trace()
    };
    let durable = |model: Model, trace: &Trace| {
        let history = History::new(trace, model);
        let state = history.state(&Recipe::new(*history.points().end(), Pick::Durable));
        let mut bytes = state.content(b"f").unwrap();
        let size = bytes.len();
        bytes.dedup();
        (size, String::from_utf8(bytes).unwrap())
    };
    let (page, whole) = (PAGE, (3 * PAGE, "son".to_owned()));
    for model in MODELS {
        let is_total = model.order == Order::Total;
        let first = durable(model, &run(0));
        assert_eq!(first, if is_total { whole.clone() } else { (page, "so".to_owned()) }, "{}", model.name);
        // A write to the last page makes the size durable that ends in it, with that page's bytes.
        let (size, text) = durable(model, &run(2 * page as u64));
        assert_eq!(size, 3 * page, "{}", model.name);
        assert!(text.ends_with("sn"), "{}: {text:?}", model.name);
    }
}

/// The pages that a failed write with O_DSYNC gave up are its own. A later fsync writes the others.
#[test]
fn a_synchronous_write_that_failed_gives_up_no_size_of_other_pages() {
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    file.write_at(0, &[b'o'; PAGE]).unwrap();
    disk.settle();
    file.write_at(PAGE as u64, &[b'n'; PAGE]).unwrap();
    file.write_durably_at(0, &[b's'; 100]).unwrap();
    file.sync_all().unwrap();
    let mut trace = disk.trace();
    let failed = trace.events.len() - 2;
    trace.events[failed].errno = 5;
    for model in MODELS {
        let history = History::new(&trace, model);
        let state = history.state(&Recipe::new(*history.points().end(), Pick::Durable));
        assert_eq!(state.content(b"f").unwrap()[PAGE..], [b'n'; PAGE], "{}", model.name);
    }
}

/// Observed on XFS, and not on ext4: a truncate that enlarges the file waits for the bytes that
/// were appended before.
#[test]
fn a_larger_size_comes_after_the_appended_bytes() {
    let large = 16 * PAGE as u64;
    type Enlarge = fn(&crate::disk::DiskFile, u64);
    let calls: [(&str, Enlarge); 3] = [
        ("truncate", |file, size| file.set_len(size).unwrap()),
        ("truncate to the same size", |file, _| file.set_len(file.len()).unwrap()),
        ("fallocate", |file, size| {
            file.allocate(Space::Allocate { keep_size: false }, 0, size).unwrap();
        }),
    ];
    for (what, enlarge) in calls {
        let run = |disk: &Disk| {
            disk.create("f").unwrap();
            disk.settle();
            let file = disk.open("f").unwrap();
            file.write_at(0, &[b'n'; PAGE]).unwrap();
            enlarge(&file, large);
        };
        for model in MODELS {
            let found = every_content(model.name, run);
            // The size is set, and the bytes are lost.
            let may_be_zeros = !["strict", "kedgefs", "xfs"].contains(&model.name);
            assert_eq!(found.contains("0"), may_be_zeros, "{}: {what}: {found:?}", model.name);
        }
    }
    // The last page may have come to the disk alone, and with it the size: then the truncate waits
    // for no page.
    let two_pages = |size: u64| {
        move |disk: &Disk| {
            disk.create("f").unwrap();
            disk.settle();
            let file = disk.open("f").unwrap();
            file.write_at(0, &[b'a'; PAGE]).unwrap();
            file.write_at(PAGE as u64, &[b'b'; PAGE]).unwrap();
            file.set_len(size).unwrap();
        }
    };
    let found = every_content("xfs", two_pages(large));
    assert!(found.contains("0b0") && !found.contains("a0") && !found.contains("0"), "{found:?}");
    // A size below the present one waits for no page beyond it.
    let found = every_content("xfs", two_pages(PAGE as u64));
    assert!(found.contains("0"), "{found:?}");
}
