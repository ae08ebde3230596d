#![allow(clippy::unwrap_used)]

use super::*;

/// Of a file, which needs nothing: a row for each amount of clients, none of them empty.
#[test]
fn each_image_has_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let table = run(std::slice::from_ref(&image), 1, Duration::from_millis(50), |_| ()).unwrap();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), 1 + CLIENTS.len(), "{table}");
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert!(cells[0].contains(&image), "{row}");
        assert!(cells[4].parse::<f64>().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn the_middle_of_rounds_and_of_latencies() {
    let ms = Duration::from_millis;
    let one = figures((1..=100).rev().map(ms).collect(), Duration::from_secs(2));
    assert_eq!((one.p50, one.p99), (ms(51), ms(100)));
    assert!((one.per_second - 50.0).abs() < 1e-9);
    let rounds = [7, 1, 3].map(|n| Figures { p50: ms(n), p99: ms(10 * n), per_second: n as f64 });
    let middle = median(&rounds);
    assert_eq!((middle.p50, middle.p99), (ms(3), ms(30)));
    assert!((middle.per_second - 3.0).abs() < 1e-9);
}
