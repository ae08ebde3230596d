use super::*;

fn argv(words: &str) -> Vec<OsString> {
    words.split(' ').map(OsString::from).collect()
}

#[test]
fn the_command_line_is_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn helpers_called_by_name_are_subcommands() {
    assert_eq!(with_subcommand(argv("/sbin/mount.kedgefs a b")), argv("/sbin/mount.kedgefs mount a b"));
    assert_eq!(with_subcommand(argv("mount.fuse.kedgefs a b")), argv("mount.fuse.kedgefs mount a b"));
    assert_eq!(with_subcommand(argv("kedgefs a b")), argv("kedgefs mount a b"));
    assert_eq!(with_subcommand(argv("./kedge mount a b")), argv("./kedge mount a b"));
}

#[test]
fn a_usage_error_is_one_line() {
    let e = Cli::try_parse_from(argv("kedge mkfs")).unwrap_err();
    assert_eq!(
        one_line(&first_paragraphs(&e)),
        "the following required arguments were not provided: <IMAGE>"
    );
    let e = Cli::try_parse_from(argv("kedge mount --create many a b")).unwrap_err();
    let line = one_line(&first_paragraphs(&e));
    assert!(line.contains("--create") && line.contains("many"), "{line}");
    let line = |words| one_line(&first_paragraphs(&Cli::try_parse_from(argv(words)).unwrap_err()));
    assert_eq!(line("kedge mkf a b"), "unrecognized subcommand 'mkf'; a similar subcommand exists: 'mkfs'");
    let line = line("kedge mount --creat 4G a b");
    assert_eq!(line, "unexpected argument '--creat' found; a similar argument exists: '--create'");
}
