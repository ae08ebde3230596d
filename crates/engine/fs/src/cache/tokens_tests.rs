use super::*;
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn one_thread_gets_its_tokens_in_order() {
    let tokens = Tokens::new();
    let count = 3 * TOGETHER as u64 + 5;
    (0..count).for_each(|i| tokens.push((Ino(7), i)));
    assert_eq!(tokens.len(), count as i64);
    let taken: Vec<u64> = std::iter::from_fn(|| tokens.pop()).map(|(_, index)| index).collect();
    assert_eq!(taken, (0..count).collect::<Vec<_>>());
    assert_eq!(tokens.len(), 0);
}

#[test]
fn each_token_of_many_threads_is_taken_once() {
    const THREADS: u64 = 6;
    const EACH: u64 = 2_000;
    let tokens = Arc::new(Tokens::new());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let tokens = tokens.clone();
            kedge_base::spawn_named("tokens", move || {
                let mut taken = Vec::new();
                for i in 0..EACH {
                    tokens.push((Ino(thread), i));
                    taken.extend((i % 3 == 0).then(|| tokens.pop()).flatten());
                }
                taken
            })
            .unwrap()
        })
        .collect();
    let mut taken: Vec<Token> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    taken.extend(std::iter::from_fn(|| tokens.pop()));
    assert_eq!(taken.len() as u64, THREADS * EACH, "none is lost");
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>().len() as u64, THREADS * EACH, "none twice");
    assert_eq!(tokens.len(), 0);
}
