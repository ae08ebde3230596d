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
