//! Runs the operations of a case as system calls.

use crate::common::mapping::Mapping;
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_sim::cases::numbered;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

type Done = Result<(), String>;

/// Runs operations on a mount and holds the files that a case keeps open.
pub struct Hands {
    root: PathBuf,
    held: BTreeMap<String, File>,
    /// The mappings through which a case has stored into files; they stay until the crash.
    mapped: BTreeMap<PathBuf, Mapping>,
}

/// An operation's arguments.
struct Args<'a>(&'a [Value]);

impl<'a> Args<'a> {
    fn text(&self, i: usize) -> Result<&'a str, String> {
        self.0.get(i).and_then(Value::as_str).ok_or_else(|| format!("argument {i} is no text"))
    }

    fn number(&self, i: usize) -> Result<u64, String> {
        self.0.get(i).and_then(Value::as_u64).ok_or_else(|| format!("argument {i} is no number"))
    }
}

fn os<E: std::fmt::Display>(e: E) -> String {
    e.to_string()
}

impl Hands {
    pub fn new(root: PathBuf) -> Hands {
        Hands { root, held: BTreeMap::new(), mapped: BTreeMap::new() }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        if path == "." { self.root.clone() } else { self.root.join(path) }
    }

    /// Closes all files and mappings, after the mount has died.
    pub fn let_go(&mut self) {
        self.held.clear();
        self.mapped.clear();
    }

    pub fn operate(&mut self, op: &[Value]) -> Done {
        let (name, args) = op.split_first().ok_or("an operation begins with a word")?;
        let (name, args) = (name.as_str().ok_or("an operation begins with a word")?, Args(args));
        match name {
            "open" | "close" | "open_unlinked" | "fsync_h" | "tmpfile" => self.handles(name, &args),
            "creat" | "mkdir" | "mkdirs" | "symlink" | "mknod" | "link" | "unlink" | "rmdir" | "remove"
            | "rmtree" | "rename" | "rename_x" | "many_links" | "many_unlink" => self.names(name, &args),
            "chmod" | "setxattr" | "removexattr" => self.attributes(name, &args),
            "fsync" | "fdatasync" | "sync" | "syncfs" => self.persist(name, &args),
            "mwrite" | "msync" => self.stores(name, &args),
            // sync_range promises nothing. drop_caches would drop the caches of the whole machine,
            // and each crash empties the caches of this mount anyway.
            "sync_range" | "drop_caches" => Ok(()),
            "sleep" => {
                let seconds = args.0.first().and_then(Value::as_f64).ok_or("sleep needs seconds")?;
                std::thread::sleep(Duration::from_secs_f64(seconds));
                Ok(())
            }
            _ => self.data(name, &args),
        }
    }

    fn names(&self, name: &str, args: &Args<'_>) -> Done {
        let path = self.path(args.text(0)?);
        match name {
            "creat" => File::create_new(path).map(drop).map_err(os),
            "mkdir" => fs::create_dir(path).map_err(os),
            "mkdirs" => fs::create_dir_all(path).map_err(os),
            "symlink" => std::os::unix::fs::symlink(args.text(0)?, self.path(args.text(1)?)).map_err(os),
            "mknod" => {
                let kind = if args.text(1)? == "fifo" { FileType::Fifo } else { FileType::CharacterDevice };
                rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o644), 0x105).map_err(os)
            }
            "link" => link(&path, &self.path(args.text(1)?)),
            "unlink" => fs::remove_file(path).map_err(os),
            "rmdir" => fs::remove_dir(path).map_err(os),
            "remove" => match fs::symlink_metadata(&path).map_err(os)?.is_dir() {
                true => fs::remove_dir(path).map_err(os),
                false => fs::remove_file(path).map_err(os),
            },
            "rmtree" => fs::remove_dir_all(path).map_err(os),
            "rename" => fs::rename(path, self.path(args.text(1)?)).map_err(os),
            "rename_x" => {
                let to = self.path(args.text(1)?);
                rustix::fs::renameat_with(CWD, path, CWD, to, RenameFlags::EXCHANGE).map_err(os)
            }
            "many_links" => (args.number(2)?..=args.number(3)?)
                .try_for_each(|n| link(&path, &self.path(&numbered(args.text(1)?, n)?))),
            "many_unlink" => (args.number(1)?..=args.number(2)?)
                .try_for_each(|n| fs::remove_file(self.path(&numbered(args.text(0)?, n)?)).map_err(os)),
            other => Err(format!("unknown operation {other}")),
        }
    }

    fn attributes(&self, name: &str, args: &Args<'_>) -> Done {
        let path = self.path(args.text(0)?);
        match name {
            "chmod" => {
                let mode = u32::from_str_radix(args.text(1)?, 8).map_err(os)?;
                fs::set_permissions(path, Permissions::from_mode(mode)).map_err(os)
            }
            "setxattr" => {
                let value = args.text(2)?.as_bytes();
                rustix::fs::setxattr(path, args.text(1)?, value, XattrFlags::empty()).map_err(os)
            }
            _ => rustix::fs::removexattr(path, args.text(1)?).map_err(os),
        }
    }

    fn data(&self, name: &str, args: &Args<'_>) -> Done {
        let path = self.path(args.text(0)?);
        let mut to_write = OpenOptions::new();
        to_write.write(true);
        match name {
            "write" => {
                let file = to_write.create(true).open(path).map_err(os)?;
                file.write_all_at(&filled(args)?, args.number(1)?).map_err(os)
            }
            "dwrite" => {
                let flags = OFlags::DIRECT.bits() as i32;
                let file = to_write.create(true).custom_flags(flags).open(path).map_err(os)?;
                let bytes = filled(args)?;
                let mut aligned = IoBuf::zeroed(bytes.len().div_ceil(BLOCK_SIZE));
                aligned.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
                file.write_all_at(&aligned.as_bytes()[..bytes.len()], args.number(1)?).map_err(os)
            }
            "text" => fs::write(path, args.text(1)?).map_err(os),
            "append" => {
                let mut file = to_write.append(true).open(path).map_err(os)?;
                file.write_all(args.text(1)?.as_bytes()).map_err(os)
            }
            "clone" => {
                let to = to_write.create(true).open(self.path(args.text(2)?)).map_err(os)?;
                let from = File::open(path).map_err(os)?;
                let (mut at, mut target) = (args.number(1)?, args.number(3)?);
                let end = at + args.number(4)?;
                while at < end {
                    let left = (end - at) as usize;
                    match rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut target), left) {
                        Ok(0) => return Err(format!("the source ends at {at}")),
                        copied => drop(copied.map_err(os)?),
                    }
                }
                Ok(())
            }
            "truncate" => to_write.open(path).map_err(os)?.set_len(args.number(1)?).map_err(os),
            "falloc" => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = match args.text(1)? {
                    "alloc" => FallocateFlags::empty(),
                    "keep" => keep,
                    "zero" => FallocateFlags::ZERO_RANGE,
                    "zero_keep" => FallocateFlags::ZERO_RANGE | keep,
                    "punch" => FallocateFlags::PUNCH_HOLE | keep,
                    "collapse" => FallocateFlags::COLLAPSE_RANGE,
                    "insert" => FallocateFlags::INSERT_RANGE,
                    other => return Err(format!("unknown mode {other}")),
                };
                let file = to_write.open(path).map_err(os)?;
                rustix::fs::fallocate(file, flags, args.number(2)?, args.number(3)?).map_err(os)
            }
            other => Err(format!("unknown operation {other}")),
        }
    }

    fn stores(&mut self, name: &str, args: &Args<'_>) -> Done {
        let path = self.path(args.text(0)?);
        if name == "msync" {
            return self.mapped.get(&path).ok_or("not mapped")?.sync().map_err(os);
        }
        if !self.mapped.contains_key(&path) {
            let file = OpenOptions::new().read(true).write(true).open(&path).map_err(os)?;
            self.mapped.insert(path.clone(), Mapping::of(&file).map_err(os)?);
        }
        let mapping = self.mapped.get_mut(&path).ok_or("just mapped")?;
        mapping.store(args.number(1)? as usize, &filled(args)?);
        Ok(())
    }

    /// Syncs through a read-only descriptor, which must work too.
    fn persist(&self, name: &str, args: &Args<'_>) -> Done {
        let open = |path: &Path| File::open(path).map_err(os);
        match name {
            "fsync" => open(&self.path(args.text(0)?))?.sync_all().map_err(os),
            "fdatasync" => open(&self.path(args.text(0)?))?.sync_data().map_err(os),
            // sync(2) would also write back all other file systems of the machine.
            _ => rustix::fs::syncfs(open(&self.root)?).map_err(os),
        }
    }

    fn handles(&mut self, name: &str, args: &Args<'_>) -> Done {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        match name {
            "open" | "open_unlinked" => {
                let path = self.path(args.text(0)?);
                self.held.insert(args.text(1)?.to_owned(), open(&path).map_err(os)?);
                if name == "open_unlinked" { fs::remove_file(path).map_err(os) } else { Ok(()) }
            }
            "close" => self.held.remove(args.text(0)?).map(drop).ok_or_else(|| "not open".to_owned()),
            "fsync_h" => self.held.get(args.text(0)?).ok_or("not open")?.sync_all().map_err(os),
            "tmpfile" => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let file = rustix::fs::open(self.path(args.text(0)?), flags, Mode::RUSR).map_err(os)?;
                let (file, byte) = (File::from(file), args.number(4)? as u8);
                let bytes = vec![byte; args.number(3)? as usize];
                file.write_all_at(&bytes, args.number(2)?).map_err(os)?;
                self.held.insert(args.text(1)?.to_owned(), file);
                Ok(())
            }
            other => Err(format!("unknown operation {other}")),
        }
    }
}

fn filled(args: &Args<'_>) -> Result<Vec<u8>, String> {
    Ok(vec![args.number(3)? as u8; args.number(2)? as usize])
}

/// Makes a second name for the inode, even if the inode is a symlink.
fn link(from: &Path, to: &Path) -> Done {
    let linked: io::Result<()> = fs::hard_link(from, to);
    linked.map_err(os)
}
