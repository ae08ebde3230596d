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
fn a_program_has_no_keeper() {
    let fault = open(Path::new("none.kedge"), "keeper").err();
    assert_eq!(fault, Some(Fault::invalid("option keeper: there is no mount here")));
}
