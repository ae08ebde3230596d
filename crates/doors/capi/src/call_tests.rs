use super::*;
use std::ffi::CStr;

struct Image(FileSystem, RwLock<()>);

impl Held for Image {
    fn file_system(&self) -> &FileSystem {
        &self.0
    }

    fn calls(&self) -> &RwLock<()> {
        &self.1
    }
}

#[allow(unsafe_code)]
fn last() -> String {
    // SAFETY: the text belongs to this thread, which has no error between the two calls.
    unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn an_error_has_a_number_and_a_text_of_its_thread() {
    assert_eq!(last(), "");
    assert_eq!(call("kedgefs_a", || Ok(7)), 7);
    assert_eq!(last(), "");
    assert_eq!(call("kedgefs_a", || Err(Fault::new(2, "b\0c"))), -2);
    assert_eq!(last(), "kedgefs_a: b?c");
    let other = kedge_base::spawn_named("other", last).unwrap();
    assert_eq!(other.join().unwrap(), "");
    assert_eq!(call("kedgefs_a", || Ok(0)), 0);
    assert_eq!(last(), "kedgefs_a: b?c", "a success keeps the text");
}

#[test]
fn a_panic_is_an_error() {
    assert_eq!(call("kedgefs_a", || panic!("no {}", 1)), -i64::from(libc::EIO));
    assert_eq!(last(), "kedgefs_a: a panic in the library: no 1");
}

#[test]
fn a_panic_shuts_down_its_file_system() {
    let image = Arc::new(Image(FileSystem::in_memory(16 << 20).unwrap(), RwLock::new(())));
    let root = image.0.root();
    root.write("before", "1").unwrap();
    let panic = |_: &Arc<Image>| -> Outcome<i64> { panic!("half done") };
    assert_eq!(on("kedgefs_a", || Ok(image.clone()), panic), -i64::from(libc::EIO));
    assert_eq!(last(), "kedgefs_a: a panic in the library: half done");
    let after = root.write("after", "2").map_err(Fault::from);
    assert_eq!(after.map_err(|fault| fault.errno), Err(libc::EIO));
}

#[test]
fn an_error_names_its_path() {
    let fault = Result::<(), _>::Err(kedgefs::Error::NotFound).at(Path::new("a/b")).unwrap_err();
    assert_eq!(fault, Fault::new(libc::ENOENT, "a/b: no such file or directory"));
}
