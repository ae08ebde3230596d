use super::*;

#[test]
fn the_times_are_found_behind_any_name() {
    let stat = "7 (a) b (c)) R 1 7 7 0 -1 4194304 95 0 0 0 250 75 0 0 20 0 1 0 100 2 3";
    assert_eq!(parse(stat), Some(Cpu { user: 2.5, system: 0.75 }));
    assert_eq!(parse("7 (a) R 1 2"), None);
    assert_eq!(parse(""), None);
}

#[test]
fn it_grows() {
    let before = Cpu::now().unwrap();
    let mut x = 1u64;
    while before.since().unwrap().total() < 0.02 {
        x = std::hint::black_box(x.wrapping_mul(3));
    }
    assert!(before.since().unwrap().total() < 60.0);
    let own = Cpu::of(&std::process::id().to_string()).unwrap();
    assert!(own.total() >= before.total() + 0.02, "by its number it is the same process");
    assert!(Cpu::of("0").is_err(), "no process has it");
}

#[test]
fn the_machine_is_busy_or_idle() {
    let stat = "cpu  100 20 300 4000 500 60 70 80 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
    let busy = parse_machine(stat).unwrap();
    assert_eq!(busy, Busy { busy: 5.5, idle: 45.0 });
    assert!((busy.percent() - 10.89).abs() < 0.01);
    assert_eq!(parse_machine("cpu0 1 2 3 4 5 6 7"), None);
    assert_eq!(parse_machine("cpu  1 2 3"), None);
    let before = Busy::now().unwrap();
    let mut x = 1u64;
    while before.since().unwrap().busy < 0.02 {
        x = std::hint::black_box(x.wrapping_mul(3));
    }
}
