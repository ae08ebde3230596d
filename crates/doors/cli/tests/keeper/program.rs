//! A program that knows what its files must contain, and compares.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// A program with a directory of its own, and the expected contents of its files.
pub struct Program {
    pub dir: PathBuf,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Open files whose names were removed, with their contents.
    nameless: Vec<(File, Vec<u8>)>,
    rng: SmallRng,
    made: u64,
}

impl Program {
    pub fn new(dir: PathBuf, seed: u64) -> Program {
        fs::create_dir(&dir).unwrap();
        let (files, nameless) = (BTreeMap::new(), Vec::new());
        Program { dir, files, nameless, rng: SmallRng::seed_from_u64(seed), made: 0 }
    }

    fn any(&mut self) -> Option<String> {
        let count = self.files.len();
        (count > 0).then(|| self.files.keys().nth(self.rng.random_range(0..count)).unwrap().clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes one operation. Every error and every difference is a failure.
    pub fn step(&mut self) -> io::Result<()> {
        let bytes = vec![self.rng.random::<u8>(); self.rng.random_range(1..20_000)];
        let at = self.rng.random_range(0..30_000u64);
        let name = match self.any() {
            Some(name) if self.files.len() > 30 || self.rng.random_bool(0.8) => name,
            _ => {
                self.made += 1;
                let name = format!("f{}", self.made);
                let file = OpenOptions::new().write(true).create_new(true).open(self.path(&name))?;
                file.write_all_at(&bytes, 0)?;
                self.files.insert(name, bytes);
                return Ok(());
            }
        };
        let path = self.path(&name);
        match self.rng.random_range(0..12) {
            0..=3 => {
                OpenOptions::new().write(true).open(&path)?.write_all_at(&bytes, at)?;
                put(self.files.get_mut(&name).unwrap(), at as usize, &bytes);
            }
            4 => {
                let file = OpenOptions::new().write(true).open(&path)?;
                file.set_len(at)?;
                self.files.get_mut(&name).unwrap().resize(at as usize, 0);
                file.sync_data()?;
            }
            5 => {
                self.made += 1;
                let new = format!("r{}", self.made);
                fs::rename(&path, self.path(&new))?;
                let bytes = self.files.remove(&name).unwrap();
                self.files.insert(new, bytes);
            }
            6 => {
                let over = self.any().unwrap();
                fs::rename(&path, self.path(&over))?;
                let bytes = self.files.remove(&name).unwrap();
                self.files.insert(over, bytes);
            }
            7 => {
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                fs::remove_file(&path)?;
                let known = self.files.remove(&name).unwrap();
                self.nameless.push((file, known));
                if self.nameless.len() > 4 {
                    self.nameless.remove(0);
                }
            }
            8 => {
                fs::remove_file(&path)?;
                self.files.remove(&name);
                assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
            }
            9 => File::open(&path)?.sync_all()?,
            10 => {
                let dir = self.path("d");
                fs::create_dir(&dir)?;
                fs::hard_link(&path, dir.join("link"))?;
                assert_eq!(fs::metadata(&path)?.nlink(), 2, "{name}");
                fs::remove_file(dir.join("link"))?;
                fs::remove_dir(&dir)?;
            }
            _ => {
                if let Some((file, known)) = self.nameless.last_mut() {
                    file.write_all_at(&bytes, at)?;
                    put(known, at as usize, &bytes);
                }
            }
        }
        self.compare_one()
    }

    fn compare_one(&mut self) -> io::Result<()> {
        if let Some(name) = self.any() {
            let found = fs::read(self.path(&name))?;
            assert!(found == self.files[&name], "{name}: {}", difference(&found, &self.files[&name]));
        }
        for (file, known) in &self.nameless {
            let mut found = vec![0; known.len() + 1];
            let len = file.read_at(&mut found, 0)?;
            found.truncate(len);
            assert!(found == *known, "a file without a name: {}", difference(&found, known));
        }
        Ok(())
    }

    pub fn compare_all(&self) -> io::Result<()> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().into_string().unwrap());
        }
        names.sort();
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        for (name, known) in &self.files {
            let found = fs::read(self.path(name))?;
            assert!(found == *known, "{name}: {}", difference(&found, known));
        }
        Ok(())
    }
}

fn put(known: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if known.len() < end {
        known.resize(end, 0);
    }
    known[at..end].copy_from_slice(bytes);
}

pub fn difference(found: &[u8], known: &[u8]) -> String {
    let at = found.iter().zip(known).position(|(a, b)| a != b);
    format!("{} and {} bytes, first difference at {at:?}", found.len(), known.len())
}
