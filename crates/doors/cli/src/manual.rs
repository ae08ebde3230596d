//! Makes man pages and shell completions from the same declarations as `--help`.
//!
//! clap_mangen renders the parts that clap declares (synopsis, options, subcommands). The other
//! parts (exit codes, examples, the mount options of kedgefs(5)) are in `text` and `options`. No
//! page contains a date or a path of this machine, so the same source gives the same bytes.

mod options;
mod text;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

const MANUAL: &str = "KedgeFS";
const ADMIN: &str = "8";
const FORMATS: &str = "5";
const VERSION: &str = concat!("kedge ", env!("CARGO_PKG_VERSION"));

/// A part of a page that clap does not declare.
pub enum Block {
    /// A paragraph. Words in backquotes are set in bold.
    Text(&'static str),
    /// Preformatted lines.
    Code(&'static str),
    /// A term and its explanation.
    Term(&'static str, &'static str),
}

/// A page: its file name (`kedge-mkfs.8`) and its text.
pub struct Page {
    pub file: String,
    pub roff: Vec<u8>,
}

/// All pages, in the order of their names.
pub fn pages(kedge: Command) -> Result<Vec<Page>> {
    let mut kedge = kedge.disable_help_subcommand(true);
    kedge.build();
    let mut pages = vec![options::page().context("kedgefs.5")?];
    add_command(&kedge, &mut pages)?;
    for helper in helpers() {
        add_command(&helper, &mut pages)?;
    }
    pages.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(pages)
}

/// The helpers that mount(8), mkfs(8) and fsck(8) call.
fn helpers() -> [Command; 3] {
    let command = |name, about| Command::new(name).about(about).disable_help_flag(true);
    let mount = command("mount.kedgefs", "Mount a KedgeFS image, called by mount(8)");
    let mkfs = command("mkfs.kedgefs", "Make a KedgeFS image, called by mkfs(8)");
    let fsck = command("fsck.kedgefs", "Check and repair a KedgeFS image, called by fsck(8)");
    [
        crate::mount::Args::augment_args(mount),
        crate::mkfs::Args::augment_args(mkfs),
        crate::fsck::Args::augment_args(fsck),
    ]
}

/// Adds the pages of a command and of its subcommands.
fn add_command(command: &Command, pages: &mut Vec<Page>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = render(command, &name).with_context(|| format!("the page of {name}"))?;
    pages.push(page);
    let subcommands = command.get_subcommands();
    subcommands.filter(|s| !s.is_hide_set()).try_for_each(|s| add_command(s, pages))
}

fn render(command: &Command, name: &str) -> Result<Page> {
    let man = Man::new(command.clone()).section(ADMIN).source(VERSION).manual(MANUAL);
    let mut roff = Vec::new();
    man.render_title(&mut roff)?;
    man.render_name_section(&mut roff)?;
    man.render_synopsis_section(&mut roff)?;
    man.render_description_section(&mut roff)?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        man.render_options_section(&mut roff)?;
    }
    if command.get_subcommands().any(|s| !s.is_hide_set()) {
        man.render_subcommands_section(&mut roff)?;
    }
    let mut roff = set_bold(&String::from_utf8(roff).context("clap's words are text")?).into_bytes();
    let mut rest = Roff::new();
    if let Some(more) = command.get_after_help() {
        rest.control("SH", ["NOTES"]);
        code(&mut rest, &more.to_string());
    }
    text::sections(name).for_each(|(heading, blocks)| section(&mut rest, heading, blocks));
    see_also(&mut rest, name);
    rest.to_writer(&mut roff)?;
    Ok(Page { file: format!("{name}.{ADMIN}"), roff })
}

fn section(roff: &mut Roff, heading: &str, blocks: &[Block]) {
    roff.control("SH", [heading]);
    for block in blocks {
        match block {
            Block::Text(text) => {
                roff.control("PP", []);
                roff.text(inlines(text));
            }
            Block::Code(lines) => code(roff, lines),
            Block::Term(term, text) => {
                roff.control("TP", []);
                roff.text([bold(*term)]);
                roff.text(inlines(text));
            }
        }
    }
}

/// Preformatted lines.
fn code(roff: &mut Roff, lines: &str) {
    roff.control("PP", []);
    roff.control("RS", ["4"]);
    roff.control("nf", []);
    lines.lines().for_each(|line| {
        roff.text([roman(line)]);
    });
    roff.control("fi", []);
    roff.control("RE", []);
}

fn see_also(roff: &mut Roff, name: &str) {
    let pages: Vec<&str> =
        text::SEE_ALSO.iter().copied().filter(|p| !p.starts_with(&format!("{name}("))).collect();
    roff.control("SH", ["SEE ALSO"]);
    let mut words = Vec::new();
    for (i, page) in pages.iter().enumerate() {
        let (title, number) = page.split_once('(').expect("each names its section");
        words.push(bold(title));
        words.push(roman(format!("({number}{}", if i + 1 < pages.len() { ", " } else { "" })));
    }
    roff.text(words);
}

/// Sets words in backquotes in bold and joins the lines of the source.
fn inlines(text: &str) -> Vec<Inline> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(i, part)| if i % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

/// Sets words in backquotes of a help text in bold.
fn set_bold(roff: &str) -> String {
    let parts = roff.split('`').enumerate();
    parts.map(|(i, part)| if i % 2 == 0 { part.to_owned() } else { format!("\\fB{part}\\fR") }).collect()
}

/// The command without its hidden arguments and subcommands, which clap_complete would offer too.
fn visible(command: &Command) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown = Command::new(command.get_name().to_owned())
        .args(args)
        .subcommands(subcommands.map(visible))
        .subcommand_required(command.is_subcommand_required_set())
        .disable_version_flag(command.is_disable_version_flag_set());
    let shown = match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    };
    match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    }
}

/// The completion scripts, each with its path below the prefix.
pub fn completions(kedge: &Command) -> Vec<(&'static str, Vec<u8>)> {
    let files = [
        (Shell::Bash, "share/bash-completion/completions/kedge"),
        (Shell::Zsh, "share/zsh/site-functions/_kedge"),
        (Shell::Fish, "share/fish/vendor_completions.d/kedge.fish"),
    ];
    files
        .into_iter()
        .map(|(shell, path)| {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(kedge), "kedge", &mut script);
            (path, script)
        })
        .collect()
}

#[cfg(test)]
#[path = "manual_tests.rs"]
mod tests;
