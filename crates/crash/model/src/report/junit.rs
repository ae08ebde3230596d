//! JUnit's XML: one test case for the search, one for each cause of failures.

use super::{Told, escape};

pub fn render(told: &Told<'_>) -> String {
    let report = told.report;
    let suite = escape(&format!("kedge crash {}", report.model.name));
    let (searching, explaining) = (report.outcome.took, report.explaining.took);
    let crashing = report.again.as_ref().map_or(std::time::Duration::ZERO, |again| again.took);
    let seconds = (searching + explaining + crashing).as_secs_f64();
    let outcome = &report.outcome;
    let is_error = outcome.broken.is_some() || report.fails_uncrashed.is_some() || outcome.states == 0;
    let again = report.again.as_ref();
    // Without a failure, a recovery that cannot be judged is an error.
    let is_error = is_error || (!report.failed() && again.is_some_and(|again| again.broken.is_some()));
    let of_recoveries = again.map_or(&[][..], |again| &again.failures[..]);
    let causes = report.failures.len() + of_recoveries.len();
    let failures = if is_error { 0 } else { causes.max(usize::from(report.failed())) };
    let tests = failures.max(1);
    // CI servers add up the times of the cases.
    let each = seconds / tests as f64;
    let mut cases = String::new();
    let mut case = |name: &str, body: &str| {
        cases.push_str(&format!(
            "    <testcase classname=\"{suite}\" name=\"{}\" time=\"{each:.3}\">{body}</testcase>\n",
            escape(name)
        ));
    };
    if is_error {
        case(told.name, &format!("<error message=\"{}\"/>", escape(&told.verdict())));
    } else if !report.failed() {
        case(
            told.name,
            &format!("<system-out>{}\n{}</system-out>", escape(&told.verdict()), escape(&told.coverage())),
        );
    } else if causes == 0 {
        case(told.name, &format!("<failure message=\"{}\"/>", escape(&told.verdict())));
    }
    for failure in &report.failures {
        let body = format!(
            "<failure message=\"{}\">{}\nstate {}</failure>",
            escape(&failure.sentence),
            escape(&failure.message),
            escape(&failure.state)
        );
        case(&format!("{}: {}", told.name, failure.state), &body);
    }
    for failure in of_recoveries {
        let body = format!(
            "<failure message=\"{}\">{}\nstate {}</failure>",
            escape(&failure.sentence),
            escape(&failure.message),
            escape(&failure.state)
        );
        case(&format!("{}: {}", told.name, failure.state), &body);
    }
    let mut took = told.took();
    if let Some(cut) = told.explaining_cut() {
        took.push_str(&format!("; {cut}"));
    }
    let took = escape(&took);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{suite}\" tests=\"{tests}\" \
         failures=\"{failures}\" errors=\"{}\" time=\"{seconds:.3}\">\n{cases}    \
         <system-out>{took}</system-out>\n  </testsuite>\n</testsuites>\n",
        u32::from(is_error)
    )
}
