//! Formats sizes, times and messages for users.

/// Makes a message one line that is safe for a terminal, because names in it may come from an
/// untrusted image or archive.
pub fn one_line(text: &str) -> String {
    kedge_base::printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A size as text, with at most two decimals: `4 GiB`, `1.50 MiB`, `512 bytes`.
pub fn show_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64),
    }
}

/// Formats a time in seconds since 1970 as `2026-11-22T06:26:47Z`.
pub fn date(sec: i64) -> String {
    let (days, rest) = (sec.div_euclid(86_400), sec.rem_euclid(86_400));
    // Count years that begin in March, in eras of 400 years, so that the leap day is a year's last
    // day.
    let from_march = days + 719_468;
    let (era, day) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Formats a duration in nanoseconds with a suitable unit.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
