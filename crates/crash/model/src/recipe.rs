//! The recipe of a crash state, and its name.
//!
//! | name | the state |
//! |---|---|
//! | `120` | after the first 120 events, nothing lost |
//! | `120.durable` | only what persistence calls had made durable |
//! | `120.lose-45-46` | without edits 45 and 46, and all that needs them |
//! | `120.keep-45` | the durable edits, and edit 45 with all it needs |
//! | `120.seed-7f3a` | a random choice |
//! | `120.garbled-45-1-2` | of that page, the sectors before sector 1 are written, and sector 1 holds garbage |
//! | `120.torn-45-0-1` | of the page that edit 45 writes, sectors 0 to 1 (without 1) written; may follow any of these |

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    All,
    Durable,
    Lose(Vec<u32>),
    Keep(Vec<u32>),
    Sample(u64),
}

/// A data edit of which only some sectors are on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Torn {
    pub micro: u32,
    /// Sectors of the page.
    pub sectors: Range<usize>,
    /// Whether these sectors hold garbage, and those before them are written. Otherwise only these
    /// sectors are written.
    pub is_garbage: bool,
}

impl Torn {
    pub fn new(micro: u32, sectors: Range<usize>) -> Torn {
        Torn { micro, sectors, is_garbage: false }
    }

    pub fn garbled(micro: u32, sectors: Range<usize>) -> Torn {
        Torn { micro, sectors, is_garbage: true }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// The crash point: the number of events before it.
    pub at: u32,
    pub pick: Pick,
    pub torn: Option<Torn>,
}

impl Recipe {
    pub fn new(at: u32, pick: Pick) -> Recipe {
        Recipe { at, pick, torn: None }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, word: &str, edits: &[u32]| {
            write!(f, ".{word}")?;
            edits.iter().try_for_each(|n| write!(f, "-{n}"))
        };
        write!(f, "{}", self.at)?;
        match &self.pick {
            Pick::All => {}
            Pick::Durable => f.write_str(".durable")?,
            Pick::Lose(edits) => list(f, "lose", edits)?,
            Pick::Keep(edits) => list(f, "keep", edits)?,
            Pick::Sample(seed) => write!(f, ".seed-{seed:x}")?,
        }
        match &self.torn {
            Some(t) => {
                let word = if t.is_garbage { "garbled" } else { "torn" };
                write!(f, ".{word}-{}-{}-{}", t.micro, t.sectors.start, t.sectors.end)
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no crash state")]
pub struct BadName(String);

impl FromStr for Recipe {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Recipe, BadName> {
        parse(name).ok_or_else(|| BadName(name.to_owned()))
    }
}

fn parse(name: &str) -> Option<Recipe> {
    let mut parts = name.split('.');
    let mut recipe = Recipe::new(parts.next()?.parse().ok()?, Pick::All);
    for part in parts {
        let mut words = part.split('-');
        let word = words.next()?;
        if word == "seed" {
            recipe.pick = Pick::Sample(u64::from_str_radix(words.next()?, 16).ok()?);
            continue;
        }
        let numbers = words.map(|w| w.parse().ok()).collect::<Option<Vec<u32>>>()?;
        match word {
            "durable" if numbers.is_empty() => recipe.pick = Pick::Durable,
            "lose" => recipe.pick = Pick::Lose(numbers),
            "keep" => recipe.pick = Pick::Keep(numbers),
            "torn" | "garbled" => match numbers[..] {
                [micro, from, to] if from < to && to <= 8 => {
                    let sectors = from as usize..to as usize;
                    recipe.torn = Some(Torn { micro, sectors, is_garbage: word == "garbled" });
                }
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(recipe)
}
