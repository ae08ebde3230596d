//! The report of an experiment on simulated processors as curves: a panel for each metric, a line
//! for each load (and each rule, where a report compares several), over the number of processors.
//!
//! They are drawn from the published report, so that picture and tables have the same figures.

use crate::plot::{self, Panel};
use anyhow::{Context, Result, ensure};

/// A row of a table: a load, a metric, and a value for each rule.
struct Row {
    load: String,
    metric: String,
    unit: String,
    values: Vec<(String, f64)>,
}

/// The tables under one heading.
struct Section {
    processors: u32,
    rows: Vec<Row>,
}

/// The picture of a report in Markdown.
pub fn svg(report: &str) -> Result<String> {
    let heading = report.lines().next().context("the report is empty")?;
    let (program, machine) = heading.split_once(", images on").context("the report names no machine")?;
    ensure!(machine.contains("durable write"), "not the first line of a report: {heading}");
    let sections = sections(report)?;
    ensure!(sections.len() > 1, "a curve needs more than one number of simulated processors");
    Ok(plot::svg("What simulated processors give", &panels(&sections), program))
}

fn sections(report: &str) -> Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let (mut rules, mut inside) = (Vec::new(), false);
    for line in report.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            inside = title.starts_with("On ") && title.ends_with("simulated");
            if inside {
                let number = title.split(' ').nth(1).unwrap_or_default();
                let processors = number.parse().with_context(|| format!("no number in \"{title}\""))?;
                sections.push(Section { processors, rows: Vec::new() });
            }
            continue;
        }
        let Some(cells) = line.strip_prefix('|').filter(|_| inside) else { continue };
        let cells: Vec<&str> = cells.trim_end_matches('|').split('|').map(str::trim).collect();
        let [load, metric, values @ ..] = &cells[..] else { continue };
        if metric == &"unit" {
            let is_rule = |name: &&&str| !["change", "expected"].contains(*name);
            rules = values.iter().take_while(is_rule).map(|name| (*name).to_owned()).collect();
        } else if let Some((metric, unit)) = metric.rsplit_once(", ") {
            let values = rules.iter().cloned().zip(values.iter().map(|cell| value(cell))).collect();
            let (load, metric, unit) = ((*load).to_owned(), metric.to_owned(), unit.to_owned());
            let section = sections.last_mut().context("a table before the first heading")?;
            section.rows.push(Row { load, metric, unit, values });
        }
    }
    Ok(sections)
}

/// The number of a cell, without its spread. A contestant that failed has none.
fn value(cell: &str) -> f64 {
    let number = cell.split(' ').next().unwrap_or_default().replace(',', "");
    number.parse().unwrap_or(f64::NAN)
}

/// Panels and lines in the order of the report.
fn panels(sections: &[Section]) -> Vec<Panel> {
    let positions: Vec<String> = sections.iter().map(|section| section.processors.to_string()).collect();
    let mut panels: Vec<Panel> = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        for row in &section.rows {
            let title = format!("{} on simulated processors", row.metric);
            let known = panels.iter().position(|panel| panel.title == title && panel.unit == row.unit);
            let panel = known.unwrap_or_else(|| {
                let (unit, positions) = (row.unit.clone(), positions.clone());
                panels.push(Panel { title, unit, positions, lines: Vec::new(), bar: None });
                panels.len() - 1
            });
            let lines = &mut panels[panel].lines;
            for (rule, value) in &row.values {
                let name =
                    if row.values.len() > 1 { format!("{}, {rule}", row.load) } else { row.load.clone() };
                let known = lines.iter().position(|(line, _)| *line == name);
                let line = known.unwrap_or_else(|| {
                    lines.push((name, vec![f64::NAN; positions.len()]));
                    lines.len() - 1
                });
                lines[line].1[at] = *value;
            }
        }
    }
    panels
}

#[cfg(test)]
#[path = "curves_tests.rs"]
mod tests;
