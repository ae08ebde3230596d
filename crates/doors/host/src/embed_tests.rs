use super::*;

#[test]
fn errors_keep_their_numbers_on_the_way() {
    let host = |e: anyhow::Error| Fault::of_host(&e.context("open disk"), 99).errno;
    assert_eq!(host(kedgefs::Error::NotEmpty.into()), libc::ENOTEMPTY);
    assert_eq!(host(kedge_base::Error::NoSpace.into()), libc::ENOSPC);
    assert_eq!(host(Usage("word".into()).into()), libc::EINVAL);
    assert_eq!(host(io::Error::from_raw_os_error(libc::EACCES).into()), libc::EACCES);
    assert_eq!(host(io::Error::from(kedgefs::Error::Exists).into()), libc::EEXIST);
    assert_eq!(host(anyhow::anyhow!("a word")), 99);
}

#[test]
fn options_of_the_kernels_side_are_refused() {
    // Without an argument each word has its default value, as in the list of words.
    let taken = [
        "ro",
        "rw",
        "cache_size",
        "tree_lock",
        "default_permissions",
        "dirty_tracking",
        "volatile",
        "nokeeper",
        "offset",
        "sizelimit",
        "key-file",
        "rbd_timeout",
        "nbd_timeout",
    ];
    let refused = [
        "allow_other",
        "fuse",
        "fuseblk",
        "workers=2",
        "placement=on",
        "transport=dev",
        "writeback_cache",
        "nowriteback_cache",
        "reflink",
        "noreflink",
        "tree=/t",
        "keeper",
        "nosuid",
        "nodev",
        "noexec",
    ];
    let name = |word: &'static str| word.split('=').next().unwrap();
    for word in crate::options::KNOWN {
        let lists = [taken.contains(&name(word)), refused.iter().any(|refused| name(refused) == name(word))];
        assert_eq!(lists.iter().filter(|has| **has).count(), 1, "{word} must be in one list");
    }
    for word in refused {
        let e = open(Path::new("none.kedge"), word).err().expect("no such image");
        assert!(e.errno == libc::EINVAL && e.text.ends_with("there is no mount here"), "{word}: {e:?}");
    }
    for word in ["ro", "rw", "nokeeper", "volatile", "suid", "dev", "exec", "commit=3"] {
        let e = open(Path::new("none.kedge"), word).err().expect("no such image");
        assert_eq!(e.errno, libc::ENOENT, "{word}: {e:?}");
    }
}
