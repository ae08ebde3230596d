use super::*;

#[test]
fn the_replay_asks_for_each_program_that_makes_its_file_systems() {
    for (kind, ..) in TRIES {
        let makes = format!("mkfs.{kind}");
        let is_asked_for = |need: &Need| matches!(need, Need::Debian(program, _) if *program == makes);
        assert!(NEEDS.iter().any(is_asked_for), "nothing installs {makes}");
        assert!(MAKE.contains(&format!("{makes} ")), "the replay does not run {makes}");
    }
}
