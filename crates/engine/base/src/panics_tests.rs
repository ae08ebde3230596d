use super::*;

#[test]
fn a_panic_becomes_an_error_with_its_words() {
    assert_eq!(without_panic("a test", || Ok(7)).unwrap(), 7);
    assert!(matches!(without_panic::<()>("a test", || Err(Error::NoSpace)), Err(Error::NoSpace)));
    for (text, error) in [
        ("plain".to_owned(), without_panic::<()>("a test", || panic!("plain")).unwrap_err()),
        ("made 7".to_owned(), without_panic::<()>("a test", || panic!("made {}", 3 + 4)).unwrap_err()),
        ("without words".to_owned(), without_panic::<()>("a test", || std::panic::panic_any(7)).unwrap_err()),
    ] {
        let said = error.to_string();
        assert!(
            matches!(error, Error::Shutdown(_)) && said.ends_with(&format!("a panic in a test: {text}")),
            "{said}"
        );
    }
}
