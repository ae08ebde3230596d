//! JUnit XML: one test case for the search, and one for each cause of failures.

use super::{Summary, escape};

pub fn render(summary: &Summary<'_>) -> String {
    let suite = escape(&format!("kedge crash {}", summary.model.name));
    let Summary { name, seconds, verdict, findings, .. } = summary;
    let failures = match summary.is_judged {
        false => 0,
        true => findings.len().max(usize::from(summary.failed)),
    };
    let tests = failures.max(1);
    // CI servers add up the times of the cases, so each case gets an equal share.
    let each = seconds / tests as f64;
    let mut cases = String::new();
    let mut case = |name: &str, body: &str| {
        cases.push_str(&format!(
            "    <testcase classname=\"{suite}\" name=\"{}\" time=\"{each:.3}\">{body}</testcase>\n",
            escape(name)
        ));
    };
    if !summary.is_judged {
        case(name, &format!("<error message=\"{}\"/>", escape(verdict)));
    } else if !summary.failed {
        let body = format!("<system-out>{}\n{}</system-out>", escape(verdict), escape(&summary.coverage));
        case(name, &body);
    } else if findings.is_empty() {
        case(name, &format!("<failure message=\"{}\"/>", escape(verdict)));
    }
    for finding in findings {
        let body = format!(
            "<failure message=\"{}\">{}\nstate {}</failure>",
            escape(&finding.sentence),
            escape(finding.message),
            escape(finding.state)
        );
        case(&format!("{name}: {}", finding.state), &body);
    }
    let mut took = summary.took.clone();
    if let Some(cut) = &summary.explaining_cut {
        took.push_str(&format!("; {cut}"));
    }
    let took = escape(&took);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{suite}\" tests=\"{tests}\" \
         failures=\"{failures}\" errors=\"{}\" time=\"{seconds:.3}\">\n{cases}    \
         <system-out>{took}</system-out>\n  </testsuite>\n</testsuites>\n",
        u32::from(!summary.is_judged)
    )
}
