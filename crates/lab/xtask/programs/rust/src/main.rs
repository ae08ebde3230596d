//! Puts keys into redb, sled or fjall and promises each when its commit or flush has returned. Or
//! checks a store, or prints its content. Arguments: run STORE MODE COUNT, check STORE, or show
//! STORE.

use redb::{Database, Durability, ReadableTable, TableDefinition};
use std::error::Error;
use std::io::Write;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TABLE: TableDefinition<&str, &[u8]> = TableDefinition::new("zoo");

fn key(n: usize) -> String {
    format!("key{n:04}")
}

fn value(key: &str) -> Vec<u8> {
    key.as_bytes().repeat(100)
}

fn tell(what: &str) -> Result<()> {
    println!("ack {what}");
    Ok(std::io::stdout().flush()?)
}

fn sync_names(dir: &Path) -> Result<()> {
    std::fs::File::open(dir)?.sync_all()?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_names(&entry.path())?;
        }
    }
    Ok(())
}

/// Promises each key, whatever the mode. At its end the program makes everything durable, since a
/// program that ends is no crash.
fn run(store: &str, mode: &str, count: usize) -> Result<()> {
    let dir = std::env::var("KEDGE_DIR")?;
    std::env::set_current_dir(dir)?;
    if store == "redb" {
        let db = Database::create("db")?;
        let put = |n: usize| -> Result<()> {
            let mut write = db.begin_write()?;
            write.set_durability(if mode == "none" { Durability::None } else { Durability::Immediate });
            write.open_table(TABLE)?.insert(key(n).as_str(), value(&key(n)).as_slice())?;
            Ok(write.commit()?)
        };
        db.begin_write()?.commit()?;
        sync_names(Path::new("."))?;
        tell("open")?;
        for n in 1..=count {
            put(n)?;
            tell(&n.to_string())?;
        }
        db.begin_write()?.commit()?;
        std::process::exit(0);
    }
    if store == "fjall" {
        let (db, keys) = open_fjall()?;
        for n in 1..=count {
            keys.insert(key(n), value(&key(n)))?;
            db.persist(fjall::PersistMode::SyncAll)?;
            tell(&n.to_string())?;
        }
        std::process::exit(0);
    }
    let db = sled::Config::new().path("db").flush_every_ms(None).open()?;
    db.flush()?;
    sync_names(Path::new("."))?;
    tell("open")?;
    for n in 1..=count {
        db.insert(key(n), value(&key(n)))?;
        if mode == "flush" {
            db.flush()?;
        }
        tell(&n.to_string())?;
    }
    db.flush()?;
    std::process::exit(0);
}

fn open_fjall() -> Result<(fjall::Keyspace, fjall::PartitionHandle)> {
    let db = fjall::Config::new("db").open()?;
    let keys = db.open_partition("zoo", fjall::PartitionCreateOptions::default())?;
    Ok((db, keys))
}

/// In this mode fjall promises nothing for the store itself, so the check expects each promise to
/// be a key.
fn check_fjall(promised: usize) -> Result<()> {
    let (_db, keys) = open_fjall()?;
    for n in 1..=promised {
        let found = keys.get(key(n))?.ok_or_else(|| format!("{} was promised and is not there", key(n)))?;
        if *found != *value(&key(n)) {
            return Err(format!("{} has a wrong value", key(n)).into());
        }
    }
    std::process::exit(0);
}

fn check(store: &str) -> Result<()> {
    let promised: usize = std::env::var("KEDGE_ACKED_COUNT")?.parse()?;
    if store == "fjall" {
        return check_fjall(promised);
    }
    if promised == 0 {
        return Ok(());
    }
    let lost = |n: usize| format!("{} was promised and is not there", key(n));
    if store == "redb" {
        let db = Database::open("db")?;
        let read = db.begin_read()?;
        let table = match read.open_table(TABLE) {
            Err(redb::TableError::TableDoesNotExist(_)) if promised == 1 => return Ok(()),
            table => table?,
        };
        for row in table.iter()? {
            let (k, v) = row?;
            if v.value() != value(k.value()) {
                return Err(format!("{} has a wrong value", k.value()).into());
            }
        }
        for n in 1..promised {
            table.get(key(n).as_str())?.ok_or_else(|| lost(n))?;
        }
        return Ok(());
    }
    let db = sled::open("db")?;
    for n in 1..promised {
        let found = db.get(key(n))?.ok_or_else(|| lost(n))?;
        if found.as_ref() != value(&key(n)) {
            return Err(format!("{} has a wrong value", key(n)).into());
        }
    }
    Ok(())
}

/// Prints the keys with their values.
fn show(store: &str) -> Result<()> {
    if store == "redb" {
        let read = Database::open("db")?.begin_read()?;
        match read.open_table(TABLE) {
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            table => {
                for row in table?.iter()? {
                    let (k, v) = row?;
                    println!("{} {:?}", k.value(), String::from_utf8_lossy(v.value()));
                }
            }
        }
        return Ok(());
    }
    for row in sled::open("db")?.iter() {
        let (k, v) = row?;
        println!("{:?} {:?}", String::from_utf8_lossy(&k), String::from_utf8_lossy(&v));
    }
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["run", store, mode, count] => run(store, mode, count.parse()?),
        ["check", store] => check(store),
        ["show", store] => show(store),
        _ => Err("run STORE MODE COUNT, check STORE, or show STORE".into()),
    }
}
