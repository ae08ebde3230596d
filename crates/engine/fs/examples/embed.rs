//! An application keeps its files in one image file: `cargo run -p kedgefs --example embed --
//! IMAGE`.

use kedgefs::{Dir, FileSystem};
use std::io::{self, Write};
use std::path::Path;

/// Replaces a document. After a crash the old or the new document is there; once the call has
/// returned, the new one.
pub fn save(dir: &Dir, name: &str, text: &str) -> io::Result<()> {
    let draft = format!("{name}.draft");
    let mut file = dir.create(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    dir.rename(&draft, name)?;
    dir.sync_all()
}

/// Opens the image, or creates it, increments the counter in it, and returns the count.
pub fn count_runs(image: &Path) -> io::Result<u64> {
    let fs = match image.try_exists()? {
        true => FileSystem::open_image(image)?,
        false => FileSystem::create_image(image, 64 << 20)?,
    };
    fs.root().create_dir_all("settings")?;
    let settings = fs.root().dir("settings")?;
    let runs = match settings.read_to_string("runs") {
        Ok(text) => text.trim().parse().map_err(io::Error::other)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    save(&settings, "runs", &format!("{}\n", runs + 1))?;
    // The close is optional. Without it nothing is lost, but the next open has to recover.
    fs.close()?;
    Ok(runs + 1)
}

#[allow(dead_code)] // the tests include this file and call the functions above
fn main() -> io::Result<()> {
    let image = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("which image file?"))?;
    println!("run number {}", count_runs(Path::new(&image))?);
    Ok(())
}
