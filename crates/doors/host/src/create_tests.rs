use super::*;
use crate::image::Image;
use kedge_format::content::Content;

/// The temporary name is predictable, so in a shared directory another user may have made a link
/// with that name.
#[test]
fn a_new_image_is_not_made_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (victim, image) = (dir.path().join("victim"), dir.path().join("image"));
    fs::write(&victim, vec![7; 32 << 20]).unwrap();
    let temporary = dir.path().join(format!(".image.{}.new", std::process::id()));
    let options = FormatOptions::default();
    for target in [&victim, &dir.path().join("nowhere")] {
        std::os::unix::fs::symlink(target, &temporary).unwrap();
        let e = format!("{:#}", create(&image, 32 << 20, &options).unwrap_err());
        assert!(e.contains("File exists"), "{e}");
        assert!(temporary.is_symlink() && !image.exists(), "the link is kept");
        fs::remove_file(&temporary).unwrap();
    }
    assert!(fs::read(&victim).unwrap().iter().all(|b| *b == 7), "the target of the link is unchanged");
    create(&image, 32 << 20, &options).unwrap();
    assert_eq!(Image::open(&image).unwrap().content().unwrap(), Content::KedgeFs);
}

/// In another user's directory that user may exchange the temporary name while the image is filled.
#[test]
fn an_exchanged_temporary_name_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (victim, image, away) = (at("victim"), at("image"), at("away"));
    fs::write(&victim, vec![7; IMAGE_MIN as usize]).unwrap();
    let temporary = at(&format!(".image.{}.new", std::process::id()));
    let options = FormatOptions::default();
    let exchange = |_| {
        fs::rename(&temporary, &away)?;
        Ok(std::os::unix::fs::symlink(&victim, &temporary)?)
    };
    let e = format!("{:#}", filled(&image, IMAGE_MIN, &options, false, &exchange).unwrap_err());
    assert!(e.contains("was replaced while the image was made"), "{e}");
    assert!(temporary.is_symlink() && !image.exists(), "the link is neither published nor removed");
    assert!(fs::read(&victim).unwrap().iter().all(|b| *b == 7), "the target of the link is unchanged");
    assert_eq!(Image::open(&away).unwrap().content().unwrap(), Content::KedgeFs);
}

/// A thread exchanges the temporary name for a link as soon as it appears.
#[test]
fn an_image_is_not_made_through_a_link_that_appears_meanwhile() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (victim, image, link) = (at("victim"), at("image"), at("link"));
    fs::write(&victim, vec![7; IMAGE_MIN as usize]).unwrap();
    let temporary = at(&format!(".image.{}.new", std::process::id()));
    let (done, exchanges) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Relaxed) {
                if link.is_symlink()
                    && renameat_with(CWD, &link, CWD, &temporary, RenameFlags::EXCHANGE).is_ok()
                {
                    exchanges.fetch_add(1, Relaxed);
                }
            }
        });
        let intact = (0..60).all(|_| {
            // The name is the link or the image of the last round.
            for path in [&link, &temporary, &image] {
                fs::remove_file(path)
                    .or_else(|e| if exists(path).unwrap() { Err(e) } else { Ok(()) })
                    .unwrap();
            }
            std::os::unix::fs::symlink(&victim, &link).unwrap();
            // Fails if the name was exchanged.
            drop(create(&image, IMAGE_MIN, &FormatOptions::default()));
            fs::read(&victim).unwrap().iter().all(|b| *b == 7)
        });
        done.store(true, Relaxed);
        assert!(intact, "an image was made through the link");
    });
    assert!(exchanges.load(Relaxed) > 0, "the name was never exchanged");
}

/// All steps of `mkfs` use the target that was checked, whatever has its name by then.
#[test]
fn an_existing_target_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (victim, image, away) = (at("victim"), at("image"), at("away"));
    for path in [&victim, &image] {
        fs::write(path, vec![0; IMAGE_MIN as usize]).unwrap();
    }
    let target = Target::open(&image).unwrap();
    fs::rename(&image, &away).unwrap();
    std::os::unix::fs::symlink(&victim, &image).unwrap();
    assert_eq!(target.content().unwrap(), Content::Blank);
    engine::format(&image, target.device(None).unwrap(), &FormatOptions::default(), false).unwrap();
    assert_eq!(Image::open(&away).unwrap().content().unwrap(), Content::KedgeFs);
    assert!(fs::read(&victim).unwrap().iter().all(|b| *b == 0), "the target of the link is unchanged");
}
