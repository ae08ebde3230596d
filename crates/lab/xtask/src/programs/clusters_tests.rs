use super::*;

#[test]
fn a_node_gets_what_was_prepared_for_it() {
    let nodes = ["a", "b"].map(str::to_owned);
    let text = description("exec sh 'run.sh' 3", &nodes, |node| node == "a");
    assert_eq!(
        text,
        "command = \"exec sh 'run.sh' 3\"\n\n[[node]]\nname = \"a\"\nfrom = \"from/a\"\n\n[[node]]\nname = \"b\"\n"
    );
}
