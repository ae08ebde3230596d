//! The cost of single calls on cached data in µs, as JSON: `calls [CALLS]`. `python/overhead.py`
//! shows it beside the cost of the same calls from Python.
#![allow(clippy::disallowed_methods, reason = "it measures elapsed time for its user")]

use kedgefs::{FileSystem, OpenOptions};
use std::hint::black_box;
use std::time::Instant;

fn each(calls: u32, mut call: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

fn main() -> std::io::Result<()> {
    let calls = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 1000,
        Some(Ok(calls)) => calls,
        Some(Err(e)) => return Err(std::io::Error::other(format!("the number of calls: {e}"))),
    };
    let fs = FileSystem::in_memory(64 << 20)?;
    let root = fs.root();
    root.create_dir_all("a/b")?;
    root.write("a/b/file", vec![0; 1 << 20])?;
    let file = root.open_with("a/b/file", &OpenOptions::new().read(true).write(true))?;
    let mut page = [0; 4096];
    let stat = each(calls, || {
        root.metadata("/a/b/file").map(|attr| {
            black_box(attr);
        })
    })?;
    let read = each(calls, || {
        file.read_at(8192, &mut page).map(|n| {
            black_box(n);
        })
    })?;
    let write = each(calls, || {
        file.write_at(8192, &page).map(|n| {
            black_box(n);
        })
    })?;
    println!(r#"{{"stat": {stat}, "pread 4 KiB": {read}, "pwrite 4 KiB": {write}}}"#);
    Ok(fs.close()?)
}
