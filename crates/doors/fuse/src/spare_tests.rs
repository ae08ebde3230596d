use super::*;

const STAT: &str = "cpu  10 0 10 300 20 0 0 0 0 0\n\
                    cpu0 5 0 5 100 5 0 0 0 0 0\n\
                    cpu1 5 0 5 200 15 0 0 0 0 0\n\
                    intr 1 2 3\nctxt 99\n";

#[test]
fn idle_time_is_that_of_the_processors_that_the_process_may_use() {
    assert_eq!(idle_ticks(STAT, |_| true), Some(320));
    assert_eq!(idle_ticks(STAT, |cpu| cpu == 1), Some(215));
    assert_eq!(idle_ticks(STAT, |cpu| cpu == 7), None);
    assert_eq!(idle_ticks("", |_| true), None);
    assert_eq!(idle_ticks("cpu0\ncpux 1 2 3 4 5\n", |_| true), None);
}

#[test]
fn processors_are_busy_while_all_together_leave_less_than_an_eighth_of_one() {
    let ms = Duration::from_millis;
    let mut spare = Spare { last: Some((ms(0), ms(0))), busy: false };
    spare.judge(ms(100), Some(ms(10)));
    assert!(spare.busy, "10 of 100 ms");
    spare.judge(ms(200), Some(ms(30)));
    assert!(!spare.busy, "20 of 100 ms");
    spare.judge(ms(300), Some(ms(30)));
    assert!(spare.busy);
    spare.judge(ms(400), None);
    assert!(!spare.busy, "the kernel reports nothing");
    assert!(!spare.are_busy(ms(10_000)), "and nothing is read again");
}

#[test]
fn this_machine_reports_idle_times_that_grow() {
    let first = idle_time().expect("/proc/stat");
    assert!(idle_time().is_some_and(|second| second >= first));
}
