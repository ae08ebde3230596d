//! Where the reports of a search go.

use anyhow::{Context, Result};
use kedge_crash::report::Rendered;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub struct Reports {
    /// Print the report as JSON, or write it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = true)]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the findings as SARIF 2.1.0, for code scanning; with `record --backtrace` they have
    /// places in the sources below the current directory
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Reports {
    /// Writes the files that the user asked for, and prints the report.
    pub fn deliver(&self, told: &dyn Rendered) -> Result<()> {
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
        };
        if let Some(path) = &self.junit {
            write(path, &told.junit())?;
        }
        if let Some(path) = &self.sarif {
            let here = std::env::current_dir().context("find the present directory")?;
            write(path, &told.sarif(&here))?;
        }
        if let Some(path) = &self.html {
            write(path, &told.html())?;
        }
        match &self.json {
            Some(path) if path == Path::new("-") => print!("{}", told.json_text()),
            json => {
                if let Some(path) = json {
                    write(path, &told.json_text())?;
                }
                print!("{}", told.text());
            }
        }
        Ok(())
    }
}
