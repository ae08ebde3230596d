use super::*;

fn matches(pattern: &str, path: &str) -> bool {
    Pattern::new(pattern).matches(path.as_bytes())
}

#[test]
fn patterns() {
    for (pattern, path) in [
        ("*.wal", "a.wal"),
        ("*.wal", "deep/er/a.wal"),
        ("db/*.wal", "db/a.wal"),
        ("/db/?.wal", "db/a.wal"),
        ("**/x", "a/b/x"),
        ("db/**", "db/a/b"),
        ("*", ""),
        ("a*b*c", "aXbYbc"),
    ] {
        assert!(matches(pattern, path), "{pattern} {path}");
    }
    for (pattern, path) in [
        ("*.wal", "a.walk"),
        ("db/*.wal", "db/x/a.wal"),
        ("?", ""),
        ("a?b", "a/b"),
        ("db/*", "db"),
        ("", "a"),
    ] {
        assert!(!matches(pattern, path), "{pattern} {path}");
    }
    // This pattern takes exponential time if the matcher backtracks.
    assert!(!matches(&"*a".repeat(60), &"a".repeat(59)));
}
