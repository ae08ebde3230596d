//! Curves as one self-contained SVG file: panels with lines, with colours for light and dark pages.

use crate::contest::Outcome;
use crate::sample::number;
use std::fmt::Write;

/// Without the additional space that long names take.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
/// Width at the right for the names of the lines.
const RIGHT: f64 = 300.0;
/// What a letter of a name takes at most, on average, and the letters of the figure after it.
const LETTER: f64 = 7.0;
const FIGURE: usize = 16;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 46.0;
const PLOT: f64 = 220.0;
const PANEL: f64 = TOP + PLOT + BOTTOM;
/// Minimum distance between the names of two lines.
const NAME: f64 = 17.0;
const MARGIN: f64 = 12.0;
/// If values differ by more than this factor, their axis is logarithmic.
const FAR_APART: f64 = 50.0;
/// Positions that differ by this factor have a logarithmic axis, as those above a thousand have.
const WIDE: f64 = 16.0;
/// Lines up to this number have distinct colours.
const COLOURS: usize = 6;

const STYLE: &str = "
svg { color-scheme: light dark; }
.back { fill: #ffffff; } text { fill: #1c2430; font: 13px system-ui, sans-serif; }
.title { font-size: 15px; font-weight: 600; } .soft { fill: #5b6675; }
.grid { stroke: #d9dee5; } .bar { stroke: #b42318; stroke-dasharray: 5 4; } .bar-name { fill: #b42318; }
path { fill: none; stroke-width: 2; }
.s0 { stroke: #0b63ce; } .s1 { stroke: #b85c00; } .s2 { stroke: #1a7f37; } .s3 { stroke: #8250df; }
.s4 { stroke: #b3246b; } .s5 { stroke: #5b6675; }
.f0 { fill: #0b63ce; } .f1 { fill: #b85c00; } .f2 { fill: #1a7f37; } .f3 { fill: #8250df; }
.f4 { fill: #b3246b; } .f5 { fill: #5b6675; }
@media (prefers-color-scheme: dark) {
.back { fill: #11151b; } text { fill: #e4e8ee; } .soft { fill: #9aa5b4; }
.grid { stroke: #2c3440; } .bar { stroke: #ff8a7a; } .bar-name { fill: #ff8a7a; }
.s0 { stroke: #58a6ff; } .s1 { stroke: #f0a050; } .s2 { stroke: #56d364; } .s3 { stroke: #bc8cff; }
.s4 { stroke: #ff7ab2; } .s5 { stroke: #9aa5b4; }
.f0 { fill: #58a6ff; } .f1 { fill: #f0a050; } .f2 { fill: #56d364; } .f3 { fill: #bc8cff; }
.f4 { fill: #ff7ab2; } .f5 { fill: #9aa5b4; }
}
";

/// A diagram: lines over positions.
pub(crate) struct Panel {
    pub title: String,
    pub unit: String,
    /// Names of the positions. Each begins with its number on the horizontal axis: `10,000`, `25
    /// %`.
    pub positions: Vec<String>,
    /// Name and values of each line, one value for each position; not finite if not measured.
    pub lines: Vec<(String, Vec<f64>)>,
    /// The value of a bar on the vertical axis, which is drawn as a horizontal line.
    pub bar: Option<f64>,
}

impl Panel {
    /// A line for each metric of an outcome whose sides are positions.
    pub(crate) fn of(outcome: &Outcome, bar: Option<f64>) -> Panel {
        let values = |metric: usize| outcome.sides.iter().map(move |s| s.median(metric).unwrap_or(f64::NAN));
        let lines = outcome.metrics.iter().enumerate();
        Panel {
            title: outcome.title.clone(),
            unit: outcome.metrics.first().map_or("", |m| m.unit).to_owned(),
            positions: outcome.sides.iter().map(|side| side.name.to_owned()).collect(),
            lines: lines.map(|(i, metric)| (metric.name.to_string(), values(i).collect())).collect(),
            bar,
        }
    }
}

/// The whole picture. `what` describes it for readers who do not see it; `caption` stands below it.
pub(crate) fn svg(what: &str, panels: &[Panel], caption: &str) -> String {
    let height = PANEL * panels.len() as f64 + 30.0;
    let names = panels.iter().flat_map(|panel| &panel.lines).map(|(name, _)| name.chars().count());
    let longest = names.max().unwrap_or(0) + FIGURE;
    let width = WIDTH - RIGHT + RIGHT.max(2.0 * MARGIN + longest as f64 * LETTER);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{}\">\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(what)
    );
    for (i, panel) in panels.iter().enumerate() {
        writeln!(out, "<g transform=\"translate(0 {})\">", i as f64 * PANEL).expect("a String takes all");
        draw(panel, &mut out);
        out.push_str("</g>\n");
    }
    writeln!(
        out,
        "<text class=\"soft\" x=\"{MARGIN}\" y=\"{}\">{}</text>\n</svg>",
        height - 10.0,
        escape(caption)
    )
    .expect("a String takes all");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Parses the number with which the name of a position begins.
fn position(name: &str) -> Option<f64> {
    name.split(' ').next()?.replace(',', "").parse().ok()
}

/// Maps values to coordinates. An axis of sizes that span powers of ten is logarithmic.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.logarithmic { v.log10() } else { v };
        let (from, to) = (scale(self.from), scale(self.to));
        // Zero has no logarithm.
        let part = if to > from { (scale(value.max(self.from)) - from) / (to - from) } else { 0.5 };
        self.start + part * (self.end - self.start)
    }
}

/// Returns the vertical axis and the values of its labels. It begins at zero, unless values are so
/// far apart that the small ones would all be at the bottom.
fn vertical(values: &[f64]) -> (Axis, Vec<f64>) {
    let most = values.iter().copied().fold(0.0, f64::max).max(1e-9);
    let least = values.iter().copied().filter(|v| *v > 0.0).fold(most, f64::min);
    let (start, end) = (TOP + PLOT, TOP);
    if most / least < FAR_APART {
        let (to, steps) = round_up(most);
        let ticks = (0..=steps).map(|step| to * step as f64 / steps as f64).collect();
        return (Axis { from: 0.0, to, logarithmic: false, start, end }, ticks);
    }
    let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let ticks: Vec<f64> = (from..=to).map(|power| 10f64.powi(power)).collect();
    (Axis { from: 10f64.powi(from), to: 10f64.powi(to), logarithmic: true, start, end }, ticks)
}

/// Returns a round number at or above `value`, and the number of steps up to it.
fn round_up(value: f64) -> (f64, usize) {
    let power = 10f64.powf(value.log10().floor());
    let steps = [(1.0, 5), (2.0, 4), (2.5, 5), (3.0, 3), (4.0, 4), (5.0, 5), (6.0, 6), (8.0, 4), (10.0, 5)];
    let found = steps.into_iter().find(|(top, _)| top * power >= value * 0.999_999);
    let (top, steps) = found.unwrap_or((10.0, 5));
    (top * power, steps)
}

/// The label of a value of the vertical axis, which has room for seven letters.
fn tick(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v >= 1e6 => format!("{}M", v / 1e6),
        v => number(v),
    }
}

fn draw(panel: &Panel, out: &mut String) {
    let unit = &panel.unit;
    let xs: Vec<f64> = panel.positions.iter().filter_map(|name| position(name)).collect();
    let values = panel.lines.iter().flat_map(|(_, values)| values.iter().copied());
    let all: Vec<f64> = values.filter(|v| v.is_finite()).chain(panel.bar).collect();
    let (from, to) =
        (xs.iter().copied().fold(f64::INFINITY, f64::min), xs.iter().copied().fold(0.0, f64::max));
    let x = Axis {
        from,
        to,
        logarithmic: to > 1_000.0 || from > 0.0 && to / from >= WIDE,
        start: LEFT + MARGIN,
        end: WIDTH - RIGHT,
    };
    let (y, ticks) = vertical(&all);
    let mut write = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    write(format!("<text class=\"title\" x=\"{MARGIN}\" y=\"20\">{}, {unit}</text>", escape(&panel.title)));
    for value in ticks {
        let at = y.at(value);
        write(format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT + MARGIN
        ));
        let name = tick(value);
        write(format!(
            "<text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            at + 4.0
        ));
    }
    for name in &panel.positions {
        if let Some(value) = position(name) {
            let (at, base) = (x.at(value), TOP + PLOT + 20.0);
            write(format!(
                "<text class=\"soft\" x=\"{at:.1}\" y=\"{base}\" text-anchor=\"middle\">{}</text>",
                escape(name)
            ));
        }
    }
    if let Some(bar) = panel.bar {
        let at = y.at(bar);
        write(format!(
            "<line class=\"bar\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT + MARGIN
        ));
        write(format!(
            "<text class=\"bar-name\" x=\"{}\" y=\"{:.1}\" text-anchor=\"middle\">at most {} {unit}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            at - 5.0,
            number(bar)
        ));
    }
    let mut names = Vec::new();
    for (line, (name, values)) in panel.lines.iter().enumerate() {
        let points: Vec<(f64, f64)> = xs
            .iter()
            .zip(values)
            .filter(|(_, value)| value.is_finite())
            .map(|(at, value)| (x.at(*at), y.at(*value)))
            .collect();
        let colour = line % COLOURS;
        let Some(last) = points.last() else {
            names.push((TOP, colour, format!("{name}: failed")));
            continue;
        };
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        write(format!("<path class=\"s{colour}\" d=\"M{}\"/>", line.join(" L")));
        for (x, y) in &points {
            write(format!("<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"));
        }
        let figure = values.iter().copied().rfind(|v| v.is_finite()).unwrap_or(f64::NAN);
        names.push((last.1, colour, format!("{name}: {} {unit}", number(figure))));
    }
    for (at, colour, name) in spread(names) {
        let left = WIDTH - RIGHT + MARGIN + 8.0;
        write(format!("<circle class=\"f{colour}\" cx=\"{left}\" cy=\"{:.1}\" r=\"4\"/>", at - 1.0));
        write(format!("<text x=\"{}\" y=\"{:.1}\">{}</text>", left + 9.0, at + 4.0, escape(&name)));
    }
}

/// Places the names from top to bottom, and moves them apart where their lines end close together.
fn spread(mut names: Vec<(f64, usize, String)>) -> Vec<(f64, usize, String)> {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = f64::NEG_INFINITY;
    for (at, ..) in &mut names {
        *at = at.max(next);
        next = *at + NAME;
    }
    // Names that were pushed below the bottom are moved up again.
    let mut limit = TOP + PLOT;
    for (at, ..) in names.iter_mut().rev() {
        *at = at.min(limit);
        limit = *at - NAME;
    }
    names
}

#[cfg(test)]
#[path = "plot_tests.rs"]
mod tests;
