use super::*;
use crate::workload::Catalogue;

#[test]
fn a_workload_records_the_same_twice() {
    let workload = Catalogue::new(2, 0).variants(4321).pop().unwrap();
    let explorer = Explorer::new(&base_image(false).unwrap(), Plan::quick(1));
    let media = |run: Run| -> Vec<u64> {
        run.recording.states(explorer.plan.states).map(|s| s.medium.difference_hash(&explorer.base)).collect()
    };
    let (first, second) = (explorer.record(&workload).unwrap(), explorer.record(&workload).unwrap());
    assert_eq!(media(first), media(second));
}
