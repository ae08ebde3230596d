//! The written-down fsync cases. A power failure loses everything unflushed, nothing, or parts of
//! it.

use kedge_base::HANG;
use kedge_device::sim::Choice;
use kedge_sim::cases::{Case, EVICTED, FSYNC, Verdict};
use kedge_sim::rig::within;

#[test]
fn every_case_holds_whatever_of_the_unflushed_writes_is_lost() {
    let cases = Case::parse_all(FSYNC).expect("one case a line");
    assert!(cases.len() >= 54, "{} cases", cases.len());
    hold(&cases);
}

/// The inodes leave the cache between the changes: `kedge-sim --test broken` shows that each case
/// fails where they are forgotten then.
#[test]
fn cases_hold_where_inodes_are_evicted() {
    let cases = Case::parse_all(EVICTED).expect("one case a line");
    assert_eq!(cases.len(), 5);
    hold(&cases);
}

/// Whatever of the unflushed writes is lost.
fn hold(cases: &[Case]) {
    let choices = [Choice::None, Choice::All].into_iter();
    let choices: Vec<Choice> =
        choices.chain((0..4).map(Choice::Subset)).chain((0..6).map(Choice::Torn)).collect();
    let (mut failures, mut skipped) = (Vec::new(), Vec::new());
    for case in cases {
        for choice in &choices {
            let (inner, choice) = (case.clone(), *choice);
            let body = move || std::panic::catch_unwind(|| inner.run(choice));
            let verdict = within(HANG, &case.name(), body);
            let verdict = verdict.unwrap_or_else(|panic| Err(kedge_sim::rig::panic_text(&*panic)));
            match verdict {
                Ok(Verdict::Passed) => continue,
                Ok(Verdict::Skipped(why)) => {
                    kedge_base::skip::note(&format!("{}: {why}", case.name()));
                    skipped.push(format!("{}: {why}", case.name()));
                }
                Err(e) => failures.push(format!("{} ({}), {choice:?}: {e}", case.name(), case.why)),
            }
            break;
        }
    }
    println!("{} cases, {} skipped: {skipped:#?}", cases.len(), skipped.len());
    assert!(skipped.is_empty(), "the file system offers what each case needs");
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n\n"));
}
