//! The workloads: a table in which each tests one rule of the models, and random ones.

use crate::device;
use crate::workload::Workload;
use anyhow::Result;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The number of steps of a random workload.
const STEPS: std::ops::Range<usize> = 5..10;

/// The workloads of the table. The flag says whether `--quick` runs the workload.
const TABLE: &[(bool, &str)] = &[
    // Names, sizes and bytes of a new file, with and without fsync, and with early writeback.
    (true, "create f; write f 0+100; out f; other; fsync f"),
    (false, "create f; write f 0+100; fdatasync f; create g; other; fsync ."),
    (false, "create f; write f 0+9000; out f; other; write f 9000+5000; out f; other; other"),
    // Appended pages, written out of order.
    (true, "create f | write f 0+4096; write f 4096+4096; write f 8192+4096; out f 1; other; fsync f"),
    (false, "create f; write f 0+100 | write f 100+100; write f 8192+100; out f 2; other; out f; other"),
    // Replace by rename: without fsync, with fsync of the file alone, and the correct way.
    (true, "create f; write f 0+100 | create t; write t 0+5000; rename t f; flush"),
    (false, "create f; write f 0+100 | create t; write t 0+5000; rename t f; other; other"),
    (false, "create f; write f 0+100 | create t; write t 0+5000; rename t f; out f; other; fsync ."),
    (true, "create f; write f 0+100 | create t; write t 0+5000; fsync t; rename t f; fsync ."),
    (false, "create f; write f 0+100 | create t; write t 0+100; rename t f; fsync f; create u"),
    // A rename to a new name, and a name that is reused.
    (false, "create t; write t 0+100; rename t f; other; fsync f; rm f; create f; other"),
    // Overwrites in place: pages in any order, two writes in one page.
    (true, "create f; write f 0+8192 | write f 0+4096; write f 4096+4096; out f 1; other; fsync f"),
    (false, "create f; write f 0+4096 | write f 0+100; write f 3000+100; out f; other; fsync f"),
    // Truncates to shorter and longer sizes, and writes after them.
    (true, "create f; write f 0+8192 | cut f 0; write f 0+100; out f; other; other"),
    (false, "create f; write f 0+8192 | cut f 100; other; cut f 5000; write f 6000+10; out f; other"),
    // Sizes that a truncate enlarges after appended bytes, and a synchronous write below some.
    (true, "create f | write f 0+4096; cut f 65536; other"),
    (false, "create f | write f 0+4096; write f 4096+4096; out f 1; cut f 65536; other"),
    (true, "create f; write f 0+4096 | write f 4096+4096; dsync f 0+4096; other"),
    // A write to a page that a truncate left in place.
    (true, "create f; write f 0+16384 | cut f 4096; write f 0+4096; out f 0; fsync f"),
    (false, "create f; write f 0+16384 | cut f 4196; write f 4000+90; out f; fsync f"),
    // An fsync of a write in place, and a name that was changed before it.
    (true, "create f; write f 0+100; create a | write f 0+100; fsync f; rename a b; write f 0+100; fsync f"),
    // Order of names in one directory and in two; fsync of one file, and the fate of the others.
    (true, "mkdir d | create a; create d/b; write d/b 0+10; fsync d/b; create c; rm a; other"),
    (false, "mkdir d; create a; write a 0+10 | rename a d/a; create a; write a 0+20; fsync a; other"),
    (false, "mkdir d; mkdir e; create d/a | rename d/a e/a; fsync e; create d/b; fsync d"),
    (false, "mkdir d; create d/f; create d/g | create x; rm d/f; fsync d/g; fsync x; rename d/g g; fsync ."),
    // Hard links, the difficult case for a log of single inodes.
    (true, "create a; write a 0+10 | link a b; write a 10+10; fsync a; rm a; other"),
    (false, "create a; link a b | rm b; create b; fsync b; link b c; other"),
    (false, "create a; mkdir d | link a d/b; rm a; create a; fsync a; other"),
    (false, "mkdir d; create d/a | rename d e; mkdir d; create d/b; fsync d/b; other"),
    (false, "create a; create b | rename a c; rename b a; fsync a; rename c b; other"),
    // Everything at once, by another program's syncfs.
    (false, "create a; write a 0+5000; flush; write a 5000+100; create b; out a; flush; rm b"),
];

pub fn workloads(quick: bool, random: u64, seed: u64) -> Result<Vec<Workload>> {
    let rows = TABLE.iter().filter(|(is_quick, _)| *is_quick || !quick);
    let mut all = rows.map(|(_, text)| text.parse()).collect::<Result<Vec<Workload>>>()?;
    all.extend((0..random).map(|n| chance(seed.wrapping_add(n))));
    Ok(all)
}

const NAMES: &[&str] = &["a", "b", "d/a", "d/b"];
const KERNEL: &[&str] = &["other", "out a", "out b", "out d/a"];

/// A random workload. Steps that the file system would refuse are left out.
fn chance(seed: u64) -> Workload {
    let mut rng = SmallRng::seed_from_u64(seed);
    let before = "mkdir d; create a; write a 0+5000; create d/b; write d/b 0+100";
    let mut text = format!("{before} | ");
    let length = rng.random_range(STEPS);
    for _ in 0..200 {
        let mut name = || *NAMES.choose(&mut rng).expect("there are names");
        let (file, new) = (name(), name());
        let step = match rng.random_range(0..12) {
            0 | 1 => format!("create {file}"),
            2 | 3 => {
                format!("write {file} {}+{}", rng.random_range(0..3) * 2048, rng.random_range(1..3) * 2048)
            }
            4 => format!("cut {file} {}", rng.random_range(0..3) * 2048),
            5 => format!("rename {file} {new}"),
            6 => format!("link {file} {new}"),
            7 => format!("rm {file}"),
            8 => format!("fsync {}", [file, ".", "d"][rng.random_range(0..3)]),
            _ => KERNEL.choose(&mut rng).expect("there are steps").to_string(),
        };
        let longer = format!("{text}{step}; ");
        let accepted = |w: Workload| w.trace().is_ok() && w.is_real(&device::place());
        let is_possible = longer.parse::<Workload>().is_ok_and(accepted);
        if is_possible {
            text = longer;
        }
        if text.matches(';').count() >= before.matches(';').count() + length {
            break;
        }
    }
    text.parse().expect("each step was tried")
}
