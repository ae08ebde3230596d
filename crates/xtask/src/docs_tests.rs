use super::*;

#[test]
fn the_documents_say_what_the_code_says() {
    run(true).unwrap();
}

#[test]
fn a_table_that_differs_is_found_and_mended() {
    let (file, name, make) = PARTS[0];
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let row = make().unwrap().lines().nth(2).unwrap().to_owned();
    let edited = text.replace(&row, "| edited by hand |");
    assert_ne!(edited, text);
    assert_eq!(render(file, &edited).unwrap(), text);
    // Marks that are missing, doubled, unknown or not closed are errors.
    let mark = begin(name);
    for bad in [
        text.replace(&mark, ""),
        text.replace(&mark, &format!("{mark}\n{END}\n{mark}")),
        format!("{text}{}\n{END}\n", begin("nothing that the code knows")),
        text.replace(END, ""),
    ] {
        assert!(render(file, &bad).is_err());
    }
}
