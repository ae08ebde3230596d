//! The key of an encrypted image: finds it, and decrypts the image with it.
//!
//! A command has one key: the contents of a file (`--key-file`, `--key-fd`) to the last byte, or a
//! passphrase that it asks for on the terminal when it meets an encrypted image. A daemon, which
//! serves several images, names a file for each (`-o key-file=`).

use crate::image::{Image, check_kind, locate};
use crate::usage::Usage;
use anyhow::{Context, Result, bail};
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_device::crypt::{CRYPT_KEY, Cost, CryptDevice, CryptHeader, Locked, Secret, has_magic};
use kedge_device::{Device, OpenOptions};
use kedge_format::superblock::{Losses, Superblock};
use parking_lot::Mutex;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Limit for the bytes of a key file. A longer file is probably the wrong file.
const KEY_FILE_MAX: u64 = 1 << 20;

/// The key of this process.
struct Given {
    file: Option<PathBuf>,
    /// The passphrase or file contents. Kept, because one command may open an image several times.
    secret: Option<Arc<Secret>>,
    /// Derived keys of opened images, by the UUID in their header, because deriving one takes long.
    keys: Vec<([u8; 16], Zeroizing<[u8; CRYPT_KEY]>)>,
    /// The key that the keeper has sent, for the only image of this process.
    handed: Option<Zeroizing<[u8; CRYPT_KEY]>>,
}

static GIVEN: Mutex<Given> = Mutex::new(Given { file: None, secret: None, keys: Vec::new(), handed: None });

/// Sets the file that holds the key. Call it before any image is opened.
pub fn give(file: PathBuf) {
    GIVEN.lock().file = Some(file);
}

/// Erases all keys and passphrases. A process that serves a mount calls this when the image is
/// open: the only copy of the key is then the device's, in locked memory.
pub fn forget() {
    let mut given = GIVEN.lock();
    given.secret = None;
    given.keys.clear();
    given.handed = None;
}

/// Takes the key that the keeper has sent.
pub(crate) fn take(key: Zeroizing<[u8; CRYPT_KEY]>) {
    GIVEN.lock().handed = Some(key);
}

/// The key of an encrypted image, in locked memory, for the servers of a keeper.
pub(crate) struct ImageKey(Locked<Zeroizing<[u8; CRYPT_KEY]>>);

impl ImageKey {
    /// Returns the key of the image, or `None` if it is not encrypted. Uses the key of this
    /// process.
    pub(crate) fn of(image: &Path, device: &dyn Device) -> Result<Option<ImageKey>> {
        if !is_encrypted(device)? {
            return Ok(None);
        }
        let open = || -> Result<ImageKey> {
            let (_, key) = CryptHeader::read(device)?.unlock(&*secret(image)?)?;
            Ok(ImageKey(Locked::new(key)))
        };
        open().map(Some).with_context(|| format!("open {}", image.display()))
    }

    pub(crate) fn bytes(&self) -> &[u8; CRYPT_KEY] {
        self.0.get()
    }

    /// Opens the image for reading, decrypted.
    pub(crate) fn image(&self, path: &Path) -> Result<Image> {
        Ok(Image::on(path, Arc::new(CryptDevice::with_key(open_without_lock(path)?, self.bytes())?)))
    }
}

/// Whether this process has a key and need not ask the user.
pub fn is_given() -> bool {
    let given = GIVEN.lock();
    given.file.is_some() || given.secret.is_some()
}

/// Whether the device holds an encrypted image.
pub fn is_encrypted(device: &dyn Device) -> Result<bool> {
    let mut block = IoBuf::zeroed(1);
    if device.geometry().size < BLOCK_SIZE as u64 {
        return Ok(false);
    }
    device.read(0, &mut block)?;
    // If block 0 has a superblock, the image is not encrypted, even if the second copy of an old
    // encryption header is still there.
    let (encrypted, plain) = (has_magic(block.as_bytes()), Superblock::has_magic(block.as_bytes()));
    Ok(encrypted || (!plain && CryptHeader::is_there(device)?))
}

fn open_without_lock(image: &Path) -> Result<Arc<dyn Device>> {
    check_kind(image)?;
    let how = OpenOptions { read_only: true, lock: false, io_uring: false, ..OpenOptions::default() };
    Ok(kedge_device::open(&locate(image)?, how)?)
}

/// The header of an encrypted image, read without a lock; `None` for other images.
pub fn header_of(image: &Path) -> Result<Option<CryptHeader>> {
    let device = open_without_lock(image)?;
    if !is_encrypted(&*device)? {
        return Ok(None);
    }
    Ok(Some(CryptHeader::read(&*device).with_context(|| format!("open {}", image.display()))?))
}

/// Opens an image for reading, decrypted if it is encrypted. May ask for a passphrase.
pub fn image(path: &Path) -> Result<Image> {
    if header_of(path)?.is_none() {
        return Image::open(path);
    }
    Ok(Image::on(path, unlocked(path, open_without_lock(path)?, None)?))
}

/// The losses that an image records; `None` also if the image cannot be read, because opening it
/// gives a better error, or if it is encrypted and this process has no key yet.
pub fn losses(path: &Path) -> Option<Losses> {
    if !is_given() && header_of(path).ok()?.is_some() {
        return None;
    }
    image(path).ok()?.superblock().ok()?.checkpoint.losses
}

/// Returns the decrypted view of an encrypted device; any other device is returned as it is. `file`
/// holds the key; without `file`, the key of this process is used.
pub fn unlocked(image: &Path, device: Arc<dyn Device>, file: Option<&Path>) -> Result<Arc<dyn Device>> {
    if !is_encrypted(&*device)? {
        return Ok(device);
    }
    let open = || -> Result<CryptDevice> {
        let header = CryptHeader::read(&*device)?;
        let known = |given: &Given| {
            let found = given.keys.iter().find(|(uuid, _)| *uuid == header.uuid).map(|(_, key)| key);
            found.or(given.handed.as_ref()).cloned()
        };
        let known = known(&GIVEN.lock()).filter(|_| file.is_none());
        let key = match (known, file) {
            (Some(key), _) => key,
            (None, Some(file)) => header.unlock(&read(file)?)?.1,
            (None, None) => header.unlock(&*secret(image)?)?.1,
        };
        let device = CryptDevice::with_key(device.clone(), &key)?;
        if file.is_none() {
            GIVEN.lock().keys.push((header.uuid, key));
        }
        Ok(device)
    };
    Ok(Arc::new(open().with_context(|| format!("open {}", image.display()))?))
}

/// Encrypts the device. What it contains then decrypts to noise.
pub fn encrypt(image: &Path, device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    let secret = match is_given() {
        true => secret(image)?,
        false => {
            let asked = Arc::new(ask_twice(image)?);
            GIVEN.lock().secret = Some(asked.clone());
            asked
        }
    };
    Ok(Arc::new(CryptDevice::format(device, &secret, Cost::default())?))
}

/// The passphrase or file contents of this process. Reads the file or asks the user if necessary.
pub fn secret(image: &Path) -> Result<Arc<Secret>> {
    let file = {
        let given = GIVEN.lock();
        if let Some(secret) = &given.secret {
            return Ok(secret.clone());
        }
        given.file.clone()
    };
    let secret = Arc::new(match file {
        Some(file) => read(&file)?,
        None => ask(&format!("Passphrase of {}: ", image.display()))?,
    });
    GIVEN.lock().secret = Some(secret.clone());
    Ok(secret)
}

/// A new passphrase: from the file, or asked for twice.
pub fn new_secret(image: &Path, file: Option<&Path>) -> Result<Secret> {
    match file {
        Some(file) => read(file),
        None => ask_twice(image),
    }
}

fn read(file: &Path) -> Result<Secret> {
    let shown = file.display();
    let mut bytes = Zeroizing::new(Vec::new());
    let opened = File::open(file).with_context(|| format!("open the key file {shown}"))?;
    let read = opened.take(KEY_FILE_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("read the key file {shown}"))?;
    if bytes.is_empty() {
        bail!("the key file {shown} is empty");
    }
    if bytes.len() as u64 > KEY_FILE_MAX {
        bail!("the key file {shown} has more than {KEY_FILE_MAX} bytes");
    }
    Ok(Secret::new(std::mem::take(&mut *bytes)))
}

fn ask(prompt: &str) -> Result<Secret> {
    let typed = rpassword::prompt_password(prompt).map_err(|e| {
        Usage(format!(
            "there is no terminal to ask for a passphrase ({e}): --key-file or --key-fd gives the key"
        ))
    })?;
    if typed.is_empty() {
        bail!("the passphrase is empty");
    }
    Ok(Secret::new(typed.into_bytes()))
}

fn ask_twice(image: &Path) -> Result<Secret> {
    let first = ask(&format!("New passphrase of {}: ", image.display()))?;
    let second = ask("Once more: ")?;
    if first.bytes() != second.bytes() {
        bail!("the passphrases differ");
    }
    Ok(first)
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
