//! The parts of an output that differ each time the program starts: times, process numbers, ports.
//!
//! Two runs on the same state are compared line by line. Where two lines differ, the words that
//! differ are volatile in every line of that shape. A line that only one of the runs has is left
//! out everywhere. If the runs print the same lines in another order, the order is volatile.

use std::collections::HashMap;

/// The most shapes of lines. With more, the whole output is volatile.
const SHAPES_MAX: usize = 64;
/// The text that replaces a volatile word.
const WORD: &[u8] = b"#";

/// A kind of line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// Words and the bytes between them; `None` for a volatile word.
    Words(Vec<Option<Vec<u8>>>),
    /// The first and the last words. The words between them are volatile.
    Ends(Vec<Vec<u8>>, Vec<Vec<u8>>),
    /// A line that may be missing.
    Line(Vec<u8>),
}

/// The volatile parts of an output that were found so far.
#[derive(Clone, Debug, Default)]
pub struct Volatile {
    shapes: Vec<Shape>,
    is_order: bool,
}

/// Splits a line into words of letters and digits, and the single bytes between them.
fn words(line: &[u8]) -> Vec<&[u8]> {
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80;
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let len = rest.iter().take_while(|b| is_word(b)).count().max(1);
        let (word, after) = rest.split_at(len);
        words.push(word);
        rest = after;
    }
    words
}

fn lines(out: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = out.split(|b| *b == b'\n').collect();
    lines.pop_if(|last| last.is_empty());
    lines
}

impl Shape {
    /// The shape that two different lines have in common.
    fn of(a: &[u8], b: &[u8]) -> Shape {
        let (a, b) = (words(a), words(b));
        let owned = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
        if a.len() == b.len() {
            return Shape::Words(a.iter().zip(&b).map(|(a, b)| (a == b).then(|| a.to_vec())).collect());
        }
        let head = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let left = a.len().min(b.len()) - head;
        let tail = a.iter().rev().zip(b.iter().rev()).take(left).take_while(|(a, b)| a == b).count();
        Shape::Ends(owned(&a[..head]), owned(&a[a.len() - tail..]))
    }

    /// The line without its volatile part if it has this shape; empty if the whole line is
    /// volatile.
    fn mask(&self, line: &[u8]) -> Option<Vec<u8>> {
        match self {
            Shape::Line(whole) => (line == whole).then(Vec::new),
            Shape::Words(shape) => {
                let words = words(line);
                let is_same = |(word, shape): (&&[u8], &Option<Vec<u8>>)| {
                    shape.as_ref().is_none_or(|fixed| fixed == word)
                };
                let is_this = words.len() == shape.len() && words.iter().zip(shape).all(is_same);
                is_this.then(|| self.shown())
            }
            Shape::Ends(head, tail) => {
                let words = words(line);
                let is_this = words.len() >= head.len() + tail.len()
                    && words.iter().zip(head).all(|(a, b)| a == b)
                    && words.iter().rev().zip(tail.iter().rev()).all(|(a, b)| a == b);
                is_this.then(|| self.shown())
            }
        }
    }

    fn shown(&self) -> Vec<u8> {
        match self {
            Shape::Words(shape) => {
                shape.iter().flat_map(|word| word.as_deref().unwrap_or(WORD)).copied().collect()
            }
            Shape::Ends(head, tail) => [&head.concat()[..], WORD, &tail.concat()].concat(),
            Shape::Line(line) => line.clone(),
        }
    }
}

impl Volatile {
    /// Compares what two runs on one state print. Fails if they have too little in common.
    pub fn learn(&mut self, one: &[u8], other: &[u8]) -> Result<(), String> {
        let (one, other) = (self.normal(one), self.normal(other));
        if one == other {
            return Ok(());
        }
        let [only_one, only_other] = [(&one, &other), (&other, &one)].map(|(a, b)| missing(a, b));
        if only_one.is_empty() && only_other.is_empty() {
            self.is_order = true;
            return Ok(());
        }
        if only_one.len() == only_other.len() {
            let pairs = only_one.iter().zip(&only_other);
            pairs.for_each(|(a, b)| self.add(Shape::of(a, b)));
        } else {
            only_one.into_iter().chain(only_other).for_each(|line| self.add(Shape::Line(line)));
        }
        match self.shapes.len() <= SHAPES_MAX {
            true => Ok(()),
            false => Err("what it prints differs as a whole between two runs on one state".to_owned()),
        }
    }

    fn add(&mut self, shape: Shape) {
        if !self.shapes.contains(&shape) {
            self.shapes.push(shape);
        }
    }

    /// The lines of an output with the volatile parts replaced or removed.
    pub fn normal(&self, out: &[u8]) -> Vec<Vec<u8>> {
        let mask = |line: &[u8]| self.shapes.iter().find_map(|shape| Some((shape, shape.mask(line)?)));
        let mut normal: Vec<Vec<u8>> = lines(out)
            .into_iter()
            .filter_map(|line| match mask(line) {
                None => Some(line.to_vec()),
                Some((Shape::Line(_), _)) => None,
                Some((_, masked)) => Some(masked),
            })
            .collect();
        if self.is_order {
            normal.sort_unstable();
        }
        normal
    }

    /// Descriptions of the volatile parts for a person.
    pub fn shown(&self) -> Vec<String> {
        let order = self.is_order.then(|| "the order of the lines".to_owned());
        let shapes = self.shapes.iter().map(|shape| {
            let text = String::from_utf8_lossy(&shape.shown()).into_owned();
            format!("{:?}", kedge_base::printable(&text))
        });
        shapes.chain(order).collect()
    }
}

/// The lines of `a` that occur less often in `b`.
fn missing(a: &[Vec<u8>], b: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut left: HashMap<&[u8], usize> = HashMap::new();
    b.iter().for_each(|line| *left.entry(line).or_default() += 1);
    let mut missing = Vec::new();
    for line in a {
        match left.get_mut(&line[..]) {
            Some(n) if *n > 0 => *n -= 1,
            _ => missing.push(line.clone()),
        }
    }
    missing
}

#[cfg(test)]
#[path = "volatile_tests.rs"]
mod tests;
