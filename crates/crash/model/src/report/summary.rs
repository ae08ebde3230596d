//! The results of a run in the form that CI servers need, for one recording or for those of a
//! cluster.

use crate::explain::Explanation;
use crate::model::Model;
use crate::recoveries::Recoveries;

pub(crate) struct Summary<'a> {
    /// The name of the recording, or of the cluster's directory.
    pub name: &'a str,
    pub model: Model,
    pub checker: &'a str,
    pub seed: u64,
    pub verdict: String,
    pub coverage: String,
    /// Whether every systematic state was tried.
    pub is_whole: bool,
    /// Whether there is a verdict.
    pub is_judged: bool,
    pub failed: bool,
    pub took: String,
    pub seconds: f64,
    /// What is missing in incomplete recordings.
    pub cuts: Vec<String>,
    /// A text that explaining reached its limit, if it did.
    pub explaining_cut: Option<String>,
    /// A text with how many of the recoveries were tried, if any were.
    pub recoveries: Option<String>,
    pub findings: Vec<Finding<'a>>,
    /// The name of the first failing state, and the checker's message.
    pub first: Option<(String, &'a str)>,
}

/// One cause of failures.
pub(crate) struct Finding<'a> {
    pub state: &'a str,
    pub sentence: String,
    /// The checker's message.
    pub message: &'a str,
    pub in_recovery: bool,
    /// The explained losses. In a cluster each has the node that lost something.
    pub losses: Vec<(Option<&'a str>, &'a Explanation)>,
    /// The path of the recording that has the lost calls.
    pub place: String,
}

impl Recoveries {
    /// The findings. `place` returns the path of the recording of a node, or of the only program.
    pub(crate) fn findings<'s>(
        &'s self,
        place: impl Fn(Option<&str>) -> String + 's,
    ) -> impl Iterator<Item = Finding<'s>> {
        self.failures.iter().map(move |failure| {
            let losses: Vec<_> = failure.explanations().collect();
            Finding {
                state: &failure.state,
                sentence: failure.sentence.clone(),
                message: &failure.message,
                in_recovery: !failure.is_refusal,
                place: place(losses.first().and_then(|(node, _)| *node)),
                losses,
            }
        })
    }
}
