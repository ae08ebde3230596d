use super::*;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};

fn library() -> Library {
    let device = Arc::new(MemDevice::new(128 << 20));
    Library::on(device, &FormatOptions::default(), MountOptions::default()).unwrap()
}

/// A client in its own empty directory.
struct One {
    library: Library,
    load: Load,
    client: Client,
}

impl One {
    fn new(load: &str) -> One {
        let (library, load) = (library(), Load::parse(load).unwrap());
        let client = Client::new(library.fs().root(), &load, 0);
        One { library, load, client }
    }

    /// Runs all steps until one fails.
    fn act(&mut self) -> Result<()> {
        let steps = self.load.steps.clone();
        steps.iter().try_for_each(|step| self.client.step(step))
    }

    #[track_caller]
    fn fails(mut self, words: &str) {
        let error = format!("{:#}", self.act().unwrap_err());
        assert!(error.contains(words), "{words} in {error}");
    }

    fn root(&self) -> Dir {
        self.library.fs().root()
    }

    fn count(&self, operation: &str) -> f64 {
        let row = OPERATIONS.iter().position(|name| *name == operation).unwrap();
        self.client.times[row].count()
    }
}

const DIR: &str = r#"Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 1 2 1 NT_STATUS_OK
Close 1 NT_STATUS_OK
"#;

fn with_dir(lines: &str) -> String {
    format!("{DIR}{lines}")
}

#[test]
fn each_operation_does_what_it_says() {
    let mut one = One::new(&with_dir(
        r#"NTCreateX "\clients\client1\sub" 1 2 1 NT_STATUS_OK
Flush 1 NT_STATUS_OK
QUERY_FILE_INFORMATION 1 258 NT_STATUS_OK
Close 1 NT_STATUS_OK
NTCreateX "\clients\client1\sub" 0 1 1 NT_STATUS_OK
Close 1 NT_STATUS_OK
NTCreateX "\clients\client1\old" 0x40 1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\old" 0x40 2 2 NT_STATUS_OK
WriteX 2 100 50 50 NT_STATUS_OK
ReadX 2 90 70 60 NT_STATUS_OK
LockX 2 7 1 NT_STATUS_OK
UnlockX 2 7 1 NT_STATUS_OK
LockX 2 8 1 NT_STATUS_OK
Flush 2 NT_STATUS_OK
SET_FILE_INFORMATION 2 1004 NT_STATUS_OK
QUERY_FILE_INFORMATION 2 258 NT_STATUS_OK
QUERY_FS_INFORMATION 259 NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\OLD" 1004 NT_STATUS_OBJECT_NAME_NOT_FOUND
QUERY_PATH_INFORMATION "\clients\client1\old" 1004 NT_STATUS_OK
FIND_FIRST "\clients\client1\*" 260 1366 3 NT_STATUS_OK
Rename "\clients\client1\old" "\clients\client1\new" NT_STATUS_OK
Close 2 NT_STATUS_OK
"#,
    ));
    let before = one.library.fs().stats_json();
    one.act().unwrap();
    let attr = one.root().metadata("clients/client0/new").unwrap();
    assert_eq!(attr.size, 150);
    assert!(one.root().metadata("clients/client0/old").is_err(), "it was renamed");
    let now = one.root().metadata("clients").unwrap().mtime.sec;
    assert!((now - OLDER_CHANGE - 60..=now - OLDER_CHANGE + 60).contains(&attr.mtime.sec), "{attr:?}");
    assert_eq!(attr.mtime.nsec, 0);
    assert!(one.client.locks.is_empty(), "closing the file gave up its last lock");
    assert!(one.client.open.iter().all(Option::is_none));
    assert_eq!(one.client.bytes, 50 + 70);
    // Each line of the load counts once, even if its operation makes several calls.
    assert_eq!((one.count("NTCreateX"), one.count("Close"), one.count("Flush")), (5.0, 4.0, 2.0));
    assert_eq!((one.count("Qpathinfo"), one.count("Find"), one.count("Mkdir")), (2.0, 1.0, 1.0));
    let forces =
        |json: &str| crate::counters::Counters::parse(json).unwrap().get("log/forces/fsync").unwrap();
    assert!(forces(&one.library.fs().stats_json()) > forces(&before), "Flush is an fsync");
}

#[test]
fn names_and_trees_go() {
    let mut one = One::new(&with_dir(
        r#"NTCreateX "\clients\client1\sub" 1 2 1 NT_STATUS_OK
NTCreateX "\clients\client1\sub\a" 0x40 2 2 NT_STATUS_OK
NTCreateX "\clients\client1\sub\b" 0x40 2 3 NT_STATUS_OK
WriteX 3 0 10 10 NT_STATUS_OK
Close 1 NT_STATUS_OK
Close 2 NT_STATUS_OK
NTCreateX "\clients\client1\sub\b" 0x40 5 4 NT_STATUS_OK
Close 4 NT_STATUS_OK
Unlink "\clients\client1\sub\a" 0x6 NT_STATUS_OK
Unlink "\clients\client1\sub\a" 0x6 NT_STATUS_OBJECT_NAME_NOT_FOUND
ReadX 3 0 10 0 NT_STATUS_OK
Deltree "\clients\client1" NT_STATUS_OK
Deltree "\clients\gone" NT_STATUS_OK
SET_FILE_INFORMATION 3 1004 NT_STATUS_OK
Close 3 NT_STATUS_OK
"#,
    ));
    one.act().unwrap();
    // Files are removed and directories stay, as with dbench.
    assert_eq!(one.root().read_dir("clients/client0/sub").unwrap().count(), 0);
    assert_eq!((one.count("Unlink"), one.count("Deltree"), one.count("Sfileinfo")), (2.0, 2.0, 1.0));
}

#[test]
fn a_directory_is_read_as_far_as_dbench_reads_it() {
    let one = One::new(DIR);
    one.root().create_dir("d").unwrap();
    ["Aa", "b", "c"].iter().for_each(|name| one.root().write(format!("d/{name}"), b"").unwrap());
    let seen = |limit: usize| {
        let mut names = 0;
        one.client
            .entries("d", |_| {
                names += 1;
                names < limit
            })
            .unwrap();
        names
    };
    assert_eq!((seen(2), seen(100)), (2, 5));
    one.client.entries("gone", |_| unreachable!("there is nothing")).unwrap();
    one.client.entries("d/b", |_| unreachable!("a file has no entries")).unwrap();
}

#[test]
fn what_ends_otherwise_is_an_error_with_its_line() {
    One::new(&with_dir("Unlink \"\\clients\\x\" 6 NT_STATUS_OK"))
        .fails("line 4 of dbench's load file, Unlink");
    One::new(&with_dir("Rename \"\\clients\\x\" \"\\clients\\y\" NT_STATUS_OK")).fails("line 4");
    let made = "NTCreateX \"\\clients\\f\" 64 2 1 NT_STATUS_OK\n";
    let close = "\nClose 1 NT_STATUS_OK";
    let gone = "Close 1 NT_STATUS_OK\nUnlink \"\\clients\\f\" 6 NT_STATUS_OBJECT_NAME_NOT_FOUND";
    One::new(&with_dir(&format!("{made}{gone}"))).fails("line 6 of dbench's load file, Unlink: succeeded");
    let again = "NTCreateX \"\\clients\\f\" 64 1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND";
    One::new(&with_dir(&format!("{made}{again}{close}")))
        .fails("line 5 of dbench's load file, NTCreateX: succeeded");
    One::new(&with_dir(&format!("{made}ReadX 1 0 10 10 NT_STATUS_OK{close}")))
        .fails("0 of 10 bytes were read");
    One::new(&with_dir(&format!("{made}WriteX 1 0 10 9 NT_STATUS_OK{close}")))
        .fails("10 of 10 bytes were written, 9");
    let absent = "NTCreateX \"\\clients\\f\" 64 1 1 NT_STATUS_OK\nClose 1 NT_STATUS_OK";
    One::new(&with_dir(absent)).fails("line 4 of dbench's load file, NTCreateX");
    let dir = "NTCreateX \"\\clients\\client1\" 1 1 1 NT_STATUS_OK\nReadX 1 0 1 1 NT_STATUS_OK\nClose 1 NT_STATUS_OK";
    One::new(&with_dir(dir)).fails("the handle is a directory's");
}

/// Several clients repeat a small load: the sums are right, and no files are left.
#[test]
fn a_run_counts_all_clients_and_leaves_nothing_behind() {
    let text = with_dir(
        r#"NTCreateX "\clients\client1\f" 64 2 2 NT_STATUS_OK
WriteX 2 0 4096 4096 NT_STATUS_OK
Flush 2 NT_STATUS_OK
ReadX 2 0 4096 4096 NT_STATUS_OK
Close 2 NT_STATUS_OK
Rename "\clients\client1\f" "\clients\client1\g" NT_STATUS_OK
Deltree "\clients\client1" NT_STATUS_OK
"#,
    );
    let (library, load) = (library(), Arc::new(Load::parse(&text).unwrap()));
    let interrupt = Interrupt::new(|_| {});
    let sum = run(&library, &load, 2, Duration::from_secs(1), &interrupt).unwrap();
    let count = |name: &str| sum.operations[OPERATIONS.iter().position(|o| *o == name).unwrap()].count();
    let loops = count("Rename");
    assert!(loops >= 1.0 && sum.throughput > 0.0 && sum.max_latency > 0.0);
    // Each of the two clients may be at any point of its last repetition.
    for name in ["Mkdir", "WriteX", "ReadX", "Flush", "Deltree"] {
        assert!((count(name) - loops).abs() <= 2.0, "{name}: {} of {loops}", count(name));
    }
    assert!((count("NTCreateX") - 2.0 * loops).abs() <= 4.0);
    assert!(sum.operations.iter().map(Times::max).filter(|max| *max > sum.max_latency).count() == 0);
    assert_eq!(library.fs().root().read_dir(".").unwrap().count(), 0);

    interrupt.raise();
    assert!(run(&library, &load, 2, Duration::from_secs(1), &interrupt).is_err());
    assert!(
        run(&library, &load, 2, Duration::from_secs(1), &Interrupt::new(|_| {})).is_ok(),
        "what an interrupt left is removed"
    );
    library.close().unwrap();
}

/// If dbench is installed, one client runs all of its load file once.
#[test]
fn the_installed_load_ends_as_it_says() {
    if !std::path::Path::new(load::PLACE).exists() {
        return kedge_base::skip::note("dbench, whose load file this is about, is not installed");
    }
    let load = Load::installed().unwrap();
    let count = |name: &str| load.steps.iter().filter(|step| OPERATIONS[step.op.row()] == name).count();
    assert!(OPERATIONS.iter().all(|name| count(name) > 0), "it has all operations of the table");
    // Only a part of it runs, since all of it takes minutes in a debug build.
    let library = library();
    let mut client = Client::new(library.fs().root(), &load, 3);
    let part = load.steps.iter().take(20_000);
    part.clone().try_for_each(|step| client.step(step)).unwrap();
    let done: f64 = client.times.iter().map(Times::count).sum();
    assert_eq!(done, part.count() as f64);
    assert!(client.times[Op::Rename(0, 0).row()].count() > 50.0 && client.bytes > 50_000_000);
}
