#![allow(clippy::unwrap_used)]

use super::*;

/// For a file and for a directory, which need no server, the table has a row for each number of
/// clients, without empty cells.
#[test]
fn each_image_has_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image").to_str().unwrap().to_owned();
    let mounted = dir.path().join("mounted").to_str().unwrap().to_owned();
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let table = run(&[image.clone(), mounted.clone()], 1, Duration::from_millis(50), |_| ()).unwrap();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), 1 + 2 * CLIENTS.len(), "{table}");
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.split(" | ").collect();
        let of = if i <= CLIENTS.len() { &image } else { &mounted };
        assert!(cells[0].contains(of), "{row}");
        assert!(cells[4].parse::<f64>().unwrap() > 0.0, "{row}");
        assert_eq!(cells[5].contains('%'), i == 1, "{row}: only a lone fsync of an image has a share");
    }
    assert_eq!(std::fs::read_dir(mounted).unwrap().count(), 0, "it leaves nothing behind");
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
