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

/// docs/SEMANTICS.md names each guarantee of the crash model by its number.
#[test]
fn no_guarantee_is_kept_from_users() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let (model, semantics) = (read("docs/CRASH_MODEL.md"), read("docs/SEMANTICS.md"));
    let rows = model.lines().filter_map(|line| line.strip_prefix("| G")?.split(' ').next());
    let numbers: Vec<u32> = rows.map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>());
    assert!(numbers.len() >= 14);
    for number in numbers {
        let told = [",", ")", "."].iter().any(|end| semantics.contains(&format!("G{number}{end}")));
        assert!(told, "docs/SEMANTICS.md does not name G{number}");
    }
}
