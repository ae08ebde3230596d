//! Current versions of stores in Rust. Puts keys, each of which is promised when its commit has
//! returned, or checks a store. Arguments: run STORE COUNT, check STORE.

use std::error::Error;
use std::io::Write;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TABLE: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("zoo");

fn key(n: usize) -> String {
    format!("key{n:04}")
}

fn value(key: &str) -> Vec<u8> {
    key.as_bytes().repeat(100)
}

trait Store {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()>;
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>>;
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Fjall {
    fn open() -> Result<Fjall> {
        let db = fjall::Database::builder("db").open()?;
        let keys = db.keyspace("zoo", fjall::KeyspaceCreateOptions::default)?;
        Ok(Fjall(db, keys))
    }
}

impl Store for Fjall {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.1.insert(key, value)?;
        Ok(self.0.persist(fjall::PersistMode::SyncAll)?)
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.1.get(key)?.map(|value| value.to_vec()))
    }
}

struct Redb(redb::Database);

impl Store for Redb {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let write = self.0.begin_write()?;
        write.open_table(TABLE)?.insert(key, value)?;
        Ok(write.commit()?)
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        use redb::ReadableDatabase;
        let read = self.0.begin_read()?;
        match read.open_table(TABLE) {
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            table => Ok(table?.get(key)?.map(|value| value.value().to_vec())),
        }
    }
}

struct SurrealKv(tokio::runtime::Runtime, surrealkv::Tree);

impl SurrealKv {
    fn open() -> Result<SurrealKv> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let inside = runtime.enter();
        let tree = surrealkv::TreeBuilder::new().with_path("db".into()).build()?;
        drop(inside);
        Ok(SurrealKv(runtime, tree))
    }
}

impl Store for SurrealKv {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let mut write = self.1.begin()?;
        write.set(key.as_bytes(), value)?;
        write.set_durability(surrealkv::Durability::Immediate);
        Ok(self.0.block_on(write.commit())?)
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.1.begin()?.get(key.as_bytes())?.map(|value| value.to_vec()))
    }
}

fn open(store: &str) -> Result<Box<dyn Store>> {
    Ok(match store {
        "fjall" => Box::new(Fjall::open()?),
        "redb" => Box::new(Redb(redb::Database::create("db")?)),
        "surrealkv" => Box::new(SurrealKv::open()?),
        _ => return Err(format!("no such store: {store}").into()),
    })
}

fn run(store: &str, count: usize) -> Result<()> {
    std::env::set_current_dir(std::env::var("KEDGE_DIR")?)?;
    let mut store = open(store)?;
    for n in 1..=count {
        store.put(&key(n), &value(&key(n)))?;
        println!("ack {n}");
        std::io::stdout().flush()?;
    }
    // The store is not closed, since power fails while a program runs.
    std::process::exit(0);
}

fn check(store: &str) -> Result<()> {
    let promised: usize = std::env::var("KEDGE_ACKED_COUNT")?.parse()?;
    let mut store = open(store)?;
    for n in 1..=promised {
        match store.get(&key(n))? {
            None => return Err(format!("{} was promised and is not there", key(n)).into()),
            Some(found) if found != value(&key(n)) => {
                return Err(format!("{} has a wrong value", key(n)).into());
            }
            Some(_) => {}
        }
    }
    std::process::exit(0);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", store, count] => count.parse().map_err(Into::into).and_then(|count| run(store, count)),
        ["check", store] => check(store),
        _ => Err("run STORE COUNT, or check STORE".into()),
    };
    if let Err(error) = done {
        println!("{error}");
        std::process::exit(1);
    }
}
