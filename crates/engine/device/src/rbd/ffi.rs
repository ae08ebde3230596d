//! librados and librbd, loaded at run time: the program does not link them, and building it needs
//! no development package.
//!
//! All unsafe code of the RBD device is in this module. The types that it exports are safe: handles
//! are closed in the order that the libraries require, and a buffer that a library uses belongs to
//! this module until the library has completed the operation.

#![allow(unsafe_code)]

use crate::Op;
use kedge_base::IoBuf;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

type Ptr = *mut c_void;
/// Defines [`Api`] and its loading: each `(name, library)` group of function declarations becomes
/// fields of [`Api`].
macro_rules! api {
    ($( $lib:ident { $( fn $name:ident($($arg:ty),*) -> $ret:ty; )* } )*) => {
        /// The functions of the libraries that this module calls.
        #[derive(Clone, Copy)]
        struct Api { $($( $name: unsafe extern "C" fn($($arg),*) -> $ret, )*)* }

        impl Api {
            fn load() -> Result<Api, String> {
                $( let $lib = open_library(stringify!($lib))?; )*
                Ok(Api { $($( $name: {
                    let symbol = find($lib, stringify!($lib), stringify!($name))?;
                    // SAFETY: `symbol` is the function of that name in the library's public C
                    // interface, and its signature is the one written here. The library is never
                    // unloaded, so the pointer stays valid.
                    unsafe { std::mem::transmute::<Ptr, unsafe extern "C" fn($($arg),*) -> $ret>(symbol) }
                }, )*)* })
            }
        }
    };
}

api! {
    rados {
        fn rados_create(*mut Ptr, *const c_char) -> c_int;
        fn rados_conf_read_file(Ptr, *const c_char) -> c_int;
        fn rados_conf_set(Ptr, *const c_char, *const c_char) -> c_int;
        fn rados_connect(Ptr) -> c_int;
        fn rados_shutdown(Ptr) -> ();
        fn rados_ioctx_create(Ptr, *const c_char, *mut Ptr) -> c_int;
        fn rados_ioctx_destroy(Ptr) -> ();
        fn rados_wait_for_latest_osdmap(Ptr) -> c_int;
        fn rados_mon_command(Ptr, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
        fn rados_buffer_free(*mut c_char) -> ();
    }
    rbd {
        fn rbd_create2(Ptr, *const c_char, u64, u64, *mut c_int) -> c_int;
        fn rbd_open(Ptr, *const c_char, *mut Ptr, *const c_char) -> c_int;
        fn rbd_open_read_only(Ptr, *const c_char, *mut Ptr, *const c_char) -> c_int;
        fn rbd_close(Ptr) -> c_int;
        fn rbd_get_size(Ptr, *mut u64) -> c_int;
        fn rbd_resize(Ptr, u64) -> c_int;
        fn rbd_get_features(Ptr, *mut u64) -> c_int;
        fn rbd_metadata_set(Ptr, *const c_char, *const c_char) -> c_int;
        fn rbd_metadata_get(Ptr, *const c_char, *mut c_char, *mut usize) -> c_int;
        fn rbd_read(Ptr, u64, usize, *mut c_char) -> isize;
        fn rbd_write(Ptr, u64, usize, *const c_char) -> isize;
        fn rbd_flush(Ptr) -> c_int;
        fn rbd_discard(Ptr, u64, u64) -> c_int;
        fn rbd_write_zeroes(Ptr, u64, usize, c_int, c_int) -> isize;
        fn rbd_aio_create_completion(Ptr, Option<extern "C" fn(Ptr, Ptr)>, *mut Ptr) -> c_int;
        fn rbd_aio_read(Ptr, u64, usize, *mut c_char, Ptr) -> c_int;
        fn rbd_aio_write(Ptr, u64, usize, *const c_char, Ptr) -> c_int;
        fn rbd_aio_flush(Ptr, Ptr) -> c_int;
        fn rbd_aio_discard(Ptr, u64, u64, Ptr) -> c_int;
        fn rbd_aio_write_zeroes(Ptr, u64, usize, Ptr, c_int, c_int) -> c_int;
        fn rbd_aio_get_return_value(Ptr) -> isize;
        fn rbd_aio_get_arg(Ptr) -> Ptr;
        fn rbd_aio_release(Ptr) -> ();
        fn rbd_set_image_notification(Ptr, c_int, c_int) -> c_int;
        fn rbd_poll_io_events(Ptr, *mut Ptr, c_int) -> c_int;
        fn rbd_lock_acquire(Ptr, c_int) -> c_int;
        fn rbd_lock_release(Ptr) -> c_int;
        fn rbd_lock_break(Ptr, c_int, *const c_char) -> c_int;
        fn rbd_lock_get_owners(Ptr, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
    }
}

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `EVENT_TYPE_EVENTFD`.
const EVENTFD: c_int = 2;
/// Feature bits of new images: layering, exclusive lock, object map, fast diff, deep flatten.
const FEATURES: u64 = 61;
/// Maximum number of completions taken at a time.
const REAP_MAX: usize = 64;
/// Maximum length in bytes of a text that is read from an image's metadata.
const METADATA_MAX: usize = 512;
/// Room for the owners of a lock: an exclusive lock has at most one; the other element is spare.
const OWNERS_MAX: usize = 2;

/// Length in bytes below which librbd ignores a discard.
pub const DISCARD_BYTES_MIN: u64 = 64 << 10;

fn open_library(name: &str) -> Result<Ptr, String> {
    let (file, package) = match name {
        "rados" => (c"librados.so.2", "librados2"),
        _ => (c"librbd.so.1", "librbd1"),
    };
    // SAFETY: the name is a NUL-terminated string. The constructors that dlopen runs are Ceph's
    // own.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: dlerror returns null or a NUL-terminated string, which stays valid until this
        // thread's next call of the loader.
        let why = unsafe { libc::dlerror().cast_const().as_ref().map(|text| CStr::from_ptr(text)) };
        let why = why.map_or("no reason is known".into(), CStr::to_string_lossy);
        // The loader's message begins with the library's name.
        return Err(format!("{why} (apt-get install {package})"));
    }
    Ok(handle)
}

fn find(library: Ptr, name: &str, symbol: &str) -> Result<Ptr, String> {
    let text = CString::new(symbol).expect("names of functions have no zero byte");
    // SAFETY: dlopen returned the handle, which is never closed; the name is a NUL-terminated
    // string.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    if found.is_null() {
        return Err(format!("lib{name} is too old: it has no {symbol} (that of Ceph 16 has)"));
    }
    Ok(found)
}

fn api() -> Result<Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(Api::load).clone()
}

fn c_string(text: &str) -> CString {
    // Texts of locations contain no NUL byte, so nothing is lost.
    CString::new(text.replace('\0', "")).expect("there is no zero byte any more")
}

fn check(code: c_int) -> Result<(), i32> {
    if code < 0 { Err(-code) } else { Ok(()) }
}

/// A client of a cluster, with a pool.
pub struct Pool {
    api: Api,
    cluster: Ptr,
    ioctx: Ptr,
}

// SAFETY: librados and librbd allow all threads to use a handle at once (rados/librados.h).
unsafe impl Send for Pool {}
// SAFETY: librados and librbd allow all threads to use a handle at once (rados/librados.h).
unsafe impl Sync for Pool {}

/// The parameters of a connection.
pub struct Cluster<'a> {
    pub conf: Option<&'a str>,
    pub id: &'a str,
    pub pool: &'a str,
    pub timeout_secs: u64,
}

impl Pool {
    pub fn connect(to: &Cluster<'_>) -> Result<Pool, String> {
        let api = api()?;
        let said = |what: &str, errno: i32| format!("{what}: {}", std::io::Error::from_raw_os_error(errno));
        let mut cluster = null_mut();
        let id = c_string(to.id);
        // SAFETY: the out pointer and the C string are valid for the call.
        check(unsafe { (api.rados_create)(&raw mut cluster, id.as_ptr()) })
            .map_err(|e| said("make a client", e))?;
        let mut pool = Pool { api, cluster, ioctx: null_mut() };
        let file = to.conf.map(c_string);
        let path = file.as_ref().map_or(null(), |file| file.as_ptr());
        // SAFETY: the cluster's handle is valid until `pool` is dropped; a null path selects the
        // default paths.
        check(unsafe { (api.rados_conf_read_file)(cluster, path) })
            .map_err(|e| said(&format!("read {}", to.conf.unwrap_or("ceph.conf")), e))?;
        let secs = to.timeout_secs.to_string();
        for (name, value) in [
            ("rbd_cache", "false"),
            ("rados_osd_op_timeout", &secs),
            ("rados_mon_op_timeout", &secs),
            ("client_mount_timeout", &secs),
        ] {
            let (name, value) = (c_string(name), c_string(value));
            // SAFETY: the cluster's handle is valid until `pool` is dropped; the C strings outlive
            // the call.
            check(unsafe { (api.rados_conf_set)(cluster, name.as_ptr(), value.as_ptr()) })
                .map_err(|e| said(&format!("set {}", name.to_string_lossy()), e))?;
        }
        // SAFETY: the cluster's handle is valid until `pool` is dropped.
        check(unsafe { (api.rados_connect)(cluster) })
            .map_err(|e| said(&format!("connect as client.{}", to.id), e))?;
        let name = c_string(to.pool);
        // SAFETY: the cluster's handle is connected; the C string outlives the call; the out
        // pointer refers to a field of `pool`.
        check(unsafe { (api.rados_ioctx_create)(cluster, name.as_ptr(), &raw mut pool.ioctx) })
            .map_err(|e| said(&format!("open pool {:?}", to.pool), e))?;
        Ok(pool)
    }

    /// Creates an image of `size` bytes.
    pub fn create(&self, image: &str, size: u64) -> Result<(), i32> {
        let (name, mut order) = (c_string(image), 22);
        // SAFETY: the pool's handle is valid until `self` is dropped; the C string and the target
        // of the in-out pointer outlive the call.
        check(unsafe { (self.api.rbd_create2)(self.ioctx, name.as_ptr(), size, FEATURES, &raw mut order) })
    }

    /// Blocks a client from the cluster for a year, and waits until this client has an OSD map with
    /// that entry.
    pub fn blocklist(&self, address: &str) -> Result<(), String> {
        let quoted = address.replace('\\', "\\\\").replace('"', "\\\"");
        let command = c_string(&format!(
            r#"{{"prefix":"osd blocklist","blocklistop":"add","addr":"{quoted}","expire":31536000.0}}"#
        ));
        let commands = [command.as_ptr()];
        let (mut out, mut out_len, mut status, mut status_len) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: the cluster's handle is valid until `self` is dropped. The arguments are one C
        // string, no input, and out pointers for two buffers, all of which outlive the call.
        let code = unsafe {
            (self.api.rados_mon_command)(
                self.cluster,
                commands.as_ptr(),
                1,
                null(),
                0,
                &raw mut out,
                &raw mut out_len,
                &raw mut status,
                &raw mut status_len,
            )
        };
        for buffer in [out, status].into_iter().filter(|buffer| !buffer.is_null()) {
            // SAFETY: the library allocated the buffer for the caller and does not use it any more.
            unsafe { (self.api.rados_buffer_free)(buffer) };
        }
        let said = |e: i32| std::io::Error::from_raw_os_error(e).to_string();
        check(code).map_err(|e| format!("cannot fence {address}: {}", said(e)))?;
        // SAFETY: the cluster's handle is valid until `self` is dropped.
        check(unsafe { (self.api.rados_wait_for_latest_osdmap)(self.cluster) }).map_err(said)
    }

    /// Opens an image. It is read-only if `read_only` is set or if it is a snapshot.
    pub fn open(self, image: &str, snapshot: Option<&str>, read_only: bool) -> Result<Image, i32> {
        let (name, snapshot) = (c_string(image), snapshot.map(c_string));
        let snap = snapshot.as_ref().map_or(null(), |snap| snap.as_ptr());
        let open = if read_only { self.api.rbd_open_read_only } else { self.api.rbd_open };
        let mut handle = null_mut();
        // SAFETY: the pool's handle is valid until `self` is dropped; the C strings (or null) and
        // the out pointer are valid for the call.
        check(unsafe { open(self.ioctx, name.as_ptr(), &raw mut handle, snap) })?;
        let events = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
        let events = match events {
            Ok(events) => events,
            Err(e) => {
                // SAFETY: the handle was just opened, and nothing uses it after this call.
                unsafe { (self.api.rbd_close)(handle) };
                return Err(e.raw_os_error());
            }
        };
        let image = Image { handle, events, flights: Mutex::default(), pool: self };
        // SAFETY: the image is open. The event descriptor is closed after the image, because of the
        // order of the fields.
        check(unsafe {
            (image.pool.api.rbd_set_image_notification)(image.handle, image.events.as_raw_fd(), EVENTFD)
        })?;
        Ok(image)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: all images of the pool are closed, because each image owns its pool. Each handle
        // is destroyed once, the pool's before its cluster's.
        unsafe {
            if !self.ioctx.is_null() {
                (self.api.rados_ioctx_destroy)(self.ioctx);
            }
            (self.api.rados_shutdown)(self.cluster);
        }
    }
}

/// An open image. Its drop waits for all operations in flight.
pub struct Image {
    handle: Ptr,
    events: OwnedFd,
    /// The operations that the library has not completed, by token. Their buffers do not move.
    flights: Mutex<HashMap<u64, Op>>,
    pub pool: Pool,
}

// SAFETY: librados and librbd allow all threads to use a handle at once (see `Pool`).
unsafe impl Send for Image {}
// SAFETY: librados and librbd allow all threads to use a handle at once (see `Pool`).
unsafe impl Sync for Image {}

/// An operation that the library has completed.
pub struct Landed {
    pub token: u64,
    pub op: Op,
    pub result: Result<(), i32>,
}

impl Image {
    fn api(&self) -> &Api {
        &self.pool.api
    }

    pub fn size(&self) -> Result<u64, i32> {
        let mut size = 0;
        // SAFETY: the image is open until `self` is dropped; the out pointer is valid for the call.
        check(unsafe { (self.api().rbd_get_size)(self.handle, &raw mut size) })?;
        Ok(size)
    }

    /// Changes the size of the image to `size` bytes. Everything beyond a smaller size is lost.
    /// Returns when the change is complete.
    pub fn resize(&self, size: u64) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        check(unsafe { (self.api().rbd_resize)(self.handle, size) })
    }

    pub fn features(&self) -> Result<u64, i32> {
        let mut features = 0;
        // SAFETY: the image is open until `self` is dropped; the out pointer is valid for the call.
        check(unsafe { (self.api().rbd_get_features)(self.handle, &raw mut features) })?;
        Ok(features)
    }

    pub fn set_metadata(&self, name: &str, value: &str) -> Result<(), i32> {
        let (name, value) = (c_string(name), c_string(value));
        // SAFETY: the image is open until `self` is dropped; the C strings outlive the call.
        check(unsafe { (self.api().rbd_metadata_set)(self.handle, name.as_ptr(), value.as_ptr()) })
    }

    /// Returns a text of the image's metadata without its control characters; `None` if there is no
    /// such text, or none that this program stores.
    pub fn metadata(&self, name: &str) -> Result<Option<String>, i32> {
        let name = c_string(name);
        let mut value = [0u8; METADATA_MAX];
        let mut len = value.len();
        // SAFETY: the image is open until `self` is dropped. The C string, the buffer of `len`
        // bytes and the pointer to `len` are valid for the call.
        let code = unsafe {
            (self.api().rbd_metadata_get)(self.handle, name.as_ptr(), value.as_mut_ptr().cast(), &raw mut len)
        };
        match check(code) {
            // ERANGE: the text is longer than METADATA_MAX.
            Err(libc::ENOENT | libc::ERANGE) => return Ok(None),
            other => other?,
        }
        let Ok(text) = CStr::from_bytes_until_nul(&value) else { return Ok(None) };
        Ok(Some(text.to_string_lossy().chars().filter(|c| !c.is_control()).collect()))
    }

    /// Returns the client address of the lock's owner.
    pub fn lock_owner(&self) -> Result<Option<String>, i32> {
        let (mut mode, mut owners, mut count) = (0, [null_mut(); OWNERS_MAX], OWNERS_MAX);
        // SAFETY: the image is open until `self` is dropped. The array of `count` pointers and the
        // pointer to `count` are valid for the call.
        let code = unsafe {
            (self.api().rbd_lock_get_owners)(self.handle, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        match check(code) {
            Err(libc::ENOENT) => return Ok(None),
            other => other?,
        }
        let count = count.min(OWNERS_MAX);
        // SAFETY: the library has filled `count` pointers with NUL-terminated strings.
        let owner = owners[..count].first().map(|one| unsafe { CStr::from_ptr(*one) });
        let owner = owner.map(|text| text.to_string_lossy().into_owned());
        // SAFETY: the library allocated the strings, which have been copied and are not used any
        // more.
        unsafe { (self.api().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    pub fn lock(&self) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        check(unsafe { (self.api().rbd_lock_acquire)(self.handle, EXCLUSIVE) })
    }

    pub fn unlock(&self) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        check(unsafe { (self.api().rbd_lock_release)(self.handle) })
    }

    pub fn break_lock(&self, owner: &str) -> Result<(), i32> {
        let owner = c_string(owner);
        // SAFETY: the image is open until `self` is dropped; the C string outlives the call.
        check(unsafe { (self.api().rbd_lock_break)(self.handle, EXCLUSIVE, owner.as_ptr()) })
    }

    /// Reads in the calling thread.
    pub fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<(), i32> {
        let bytes = buf.as_mut_bytes();
        // SAFETY: the image is open until `self` is dropped. The buffer is borrowed for the call,
        // which writes at most its length.
        let n = unsafe { (self.api().rbd_read)(self.handle, offset, bytes.len(), bytes.as_mut_ptr().cast()) };
        whole(n, bytes.len())
    }

    pub fn write(&self, offset: u64, buf: &IoBuf) -> Result<(), i32> {
        let bytes = buf.as_bytes();
        // SAFETY: the image is open until `self` is dropped. The buffer is borrowed for the call,
        // which reads at most its length.
        let n = unsafe { (self.api().rbd_write)(self.handle, offset, bytes.len(), bytes.as_ptr().cast()) };
        whole(n, bytes.len())
    }

    pub fn flush(&self) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        check(unsafe { (self.api().rbd_flush)(self.handle) })
    }

    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        let n = unsafe { (self.api().rbd_write_zeroes)(self.handle, offset, len as usize, 0, 0) };
        if n < 0 { Err(-n as i32) } else { Ok(()) }
    }

    pub fn discard(&self, offset: u64, len: u64) -> Result<(), i32> {
        // SAFETY: the image is open until `self` is dropped.
        check(unsafe { (self.api().rbd_discard)(self.handle, offset, len) })
    }

    /// Starts an operation. [`Image::landed`] returns the operation with its token when it
    /// completes. If the operation cannot be started, returns it with the error.
    pub fn start(&self, token: u64, offset: u64, op: Op) -> Result<(), (i32, Op)> {
        let api = self.api();
        let mut completion = null_mut();
        // SAFETY: there is no callback; the argument is a number that the library never
        // dereferences; the out pointer is valid for the call.
        let made = unsafe { (api.rbd_aio_create_completion)(token as Ptr, None, &raw mut completion) };
        if let Err(errno) = check(made) {
            return Err((errno, op));
        }
        let mut flights = self.flights.lock();
        let op = flights.entry(token).insert_entry(op).into_mut();
        let image = self.handle;
        // SAFETY: image and completion are valid. A buffer that the library gets belongs to an
        // operation in `flights`: its heap memory does not move, and nothing accesses it until the
        // completion has been taken. If the image is closed before that, closing waits until the
        // library has finished.
        let started = unsafe {
            match op {
                Op::Read(buf) => {
                    let bytes = buf.as_mut_bytes();
                    (api.rbd_aio_read)(image, offset, bytes.len(), bytes.as_mut_ptr().cast(), completion)
                }
                Op::Write { buf, .. } => {
                    let bytes = buf.as_bytes();
                    (api.rbd_aio_write)(image, offset, bytes.len(), bytes.as_ptr().cast(), completion)
                }
                Op::Flush => (api.rbd_aio_flush)(image, completion),
                Op::Discard { len } if *len >= DISCARD_BYTES_MIN => {
                    (api.rbd_aio_discard)(image, offset, *len, completion)
                }
                Op::Discard { len } | Op::WriteZeroes { len } => {
                    (api.rbd_aio_write_zeroes)(image, offset, *len as usize, completion, 0, 0)
                }
            }
        };
        check(started).map_err(|errno| {
            let op = flights.remove(&token).expect("just put there, under the same lock");
            // SAFETY: the library did not accept the completion, so it is released here, once.
            unsafe { (api.rbd_aio_release)(completion) };
            (errno, op)
        })
    }

    /// Waits for operations to complete, or for [`Image::wake`].
    pub fn landed(&self) -> Result<Vec<Landed>, std::io::Error> {
        let mut count = [0u8; 8];
        match rustix::io::read(&self.events, &mut count) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut landed = Vec::new();
        loop {
            let mut completions = [null_mut(); REAP_MAX];
            // SAFETY: the image is open until `self` is dropped. The array has the number of
            // pointers that is passed with it.
            let found = unsafe {
                (self.api().rbd_poll_io_events)(self.handle, completions.as_mut_ptr(), REAP_MAX as c_int)
            };
            if found <= 0 {
                return check(found).map(|()| landed).map_err(std::io::Error::from_raw_os_error);
            }
            for &completion in &completions[..found as usize] {
                landed.extend(self.land(completion));
            }
        }
    }

    fn land(&self, completion: Ptr) -> Option<Landed> {
        let api = self.api();
        // SAFETY: the library has just returned this completion, so it is complete. It is released
        // once, here.
        let (token, code) = unsafe {
            let told = ((api.rbd_aio_get_arg)(completion) as u64, (api.rbd_aio_get_return_value)(completion));
            (api.rbd_aio_release)(completion);
            told
        };
        let op = self.flights.lock().remove(&token)?;
        let result = match &op {
            _ if code < 0 => Err(-code as i32),
            // A short read means that the image has shrunk and the read extends beyond its end.
            Op::Read(buf) => whole(code, buf.len()),
            _ => Ok(()),
        };
        Some(Landed { token, op, result })
    }

    /// Ends a wait in [`Image::landed`].
    pub fn wake(&self) {
        if let Err(e) = rustix::io::write(&self.events, &1u64.to_ne_bytes()) {
            tracing::error!("cannot wake the thread of an image: {e}");
        }
    }
}

fn whole(code: isize, len: usize) -> Result<(), i32> {
    match code {
        code if code < 0 => Err(-code as i32),
        code if code as usize == len => Ok(()),
        _ => Err(libc::EIO),
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the handle is closed once, here. The call waits for the operations in flight;
        // their buffers and the event descriptor are freed after it.
        unsafe { (self.api().rbd_close)(self.handle) };
    }
}
