//! The composite action for GitHub (`.github/actions/crash-test`) and the file that a GitLab
//! pipeline includes (`.gitlab/crash-test.yml`): their steps run here as the two servers run them,
//! with programs that are correct, that have a bug, and whose check is faulty.

use crate::common::{Place, needs_fuse, output_of};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The part of YAML that the two files use: maps, lists of items that begin with `- `, texts, and
/// blocks of lines after `|`.
#[derive(Debug)]
enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    fn read(path: &str) -> Yaml {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Yaml::block(&mut lines, &mut 0, 0)
    }

    fn block(lines: &mut [String], at: &mut usize, indent: usize) -> Yaml {
        let (mut map, mut list) = (Vec::new(), Vec::new());
        while let Some(line) = lines.get(*at) {
            let depth = depth_of(line);
            if line.trim().is_empty() || line.trim().starts_with('#') {
                *at += 1;
            } else if depth < indent {
                break;
            } else if let Some(item) = line.trim().strip_prefix("- ") {
                let item = item.to_owned();
                list.push(match (key(&item), &item[..]) {
                    (_, "|") => literal(lines, at),
                    (Some(_), _) => {
                        lines[*at] = format!("{}  {item}", " ".repeat(depth));
                        Yaml::block(lines, at, depth + 2)
                    }
                    (None, _) => {
                        *at += 1;
                        Yaml::Text(plain(&item))
                    }
                });
            } else {
                assert_eq!(depth, indent, "{line}");
                let (name, value) = key(line.trim()).unwrap_or_else(|| panic!("no key: {line}"));
                let (name, value) = (name.to_owned(), value.to_owned());
                map.push((
                    name,
                    match &value[..] {
                        "|" => literal(lines, at),
                        "" => {
                            *at += 1;
                            Yaml::block(lines, at, depth + 2)
                        }
                        value => {
                            *at += 1;
                            Yaml::Text(plain(value))
                        }
                    },
                ));
            }
        }
        assert!(map.is_empty() || list.is_empty(), "a map and a list in one: {map:?} {list:?}");
        if list.is_empty() { Yaml::Map(map) } else { Yaml::List(list) }
    }

    #[track_caller]
    fn get(&self, name: &str) -> &Yaml {
        self.find(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    fn find(&self, name: &str) -> Option<&Yaml> {
        let Yaml::Map(map) = self else { return None };
        map.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    #[track_caller]
    fn text(&self) -> &str {
        let Yaml::Text(text) = self else { panic!("no text: {self:?}") };
        text
    }

    #[track_caller]
    fn list(&self) -> &[Yaml] {
        let Yaml::List(list) = self else { panic!("no list: {self:?}") };
        list
    }

    #[track_caller]
    fn map(&self) -> &[(String, Yaml)] {
        let Yaml::Map(map) = self else { panic!("no map: {self:?}") };
        map
    }
}

fn depth_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A key and its value. A text may contain a colon, but no key contains a blank.
fn key(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let is_key = !name.contains(' ') && (value.is_empty() || value.starts_with(' '));
    is_key.then(|| (name, value.trim()))
}

fn plain(value: &str) -> String {
    value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')).unwrap_or(value).to_owned()
}

/// The lines that are indented deeper than the line with the `|`.
fn literal(lines: &[String], at: &mut usize) -> Yaml {
    let outer = depth_of(&lines[*at]);
    *at += 1;
    let inner = depth_of(&lines[*at]);
    assert!(inner > outer);
    let mut text = String::new();
    while let Some(line) = lines.get(*at).filter(|line| line.is_empty() || depth_of(line) > outer) {
        text.push_str(line.get(inner..).unwrap_or_default());
        text.push('\n');
        *at += 1;
    }
    Yaml::Text(text)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

const ACTION: &str = ".github/actions/crash-test/action.yml";
const INCLUDE: &str = ".gitlab/crash-test.yml";

/// Saves a file; `SYNC` stands for the fsync of the directory.
const PROGRAM: &str =
    "cd \"$KEDGE_DIR\"; echo '{}' > new; sync new; mv new a.json; SYNC sync .; echo 'saved it'";

/// A machine of a CI server: a directory with a checkout of the user's project, and the programs
/// that the steps need besides those of the system. `kedge` is not installed yet.
struct Machine {
    place: Place,
    env: BTreeMap<String, String>,
}

impl Machine {
    fn new() -> Machine {
        let place = Place::new();
        for dir in ["bin", "tmp", "empty"] {
            fs::create_dir(place.path(dir)).unwrap();
        }
        let kedge = env!("CARGO_BIN_EXE_kedge");
        let bin = place.path("bin");
        // A stand-in for cargo. It builds nothing: it checks from which source kedge would be
        // built, and links the program of this test.
        let cargo = format!(
            "#!/bin/sh -eu\ncase \"$*\" in\n\
             'install --locked --path '*) grep -q '^name = \"kedge\"' \"$4/Cargo.toml\" ;;\n\
             'install --locked --git https://example.org/kedgefs kedge') ;;\n\
             *) echo \"cargo $*: what is it to do?\" >&2; exit 2 ;;\nesac\n\
             ln -s {kedge} {bin}/kedge\n",
            bin = bin.display()
        );
        let sudo = "#!/bin/sh\nexec \"$@\"\n";
        // apt-get installs nothing. On a machine without fusermount3 the tests run as root, which
        // does not need it.
        for (name, text) in [("cargo", &cargo[..]), ("sudo", sudo), ("apt-get", "#!/bin/sh\n")] {
            fs::write(bin.join(name), text).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut env = BTreeMap::new();
        env.insert("PATH".into(), format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        env.insert("TMPDIR".into(), place.path("tmp").display().to_string());
        Machine { place, env }
    }

    /// Runs a script with additional environment variables. Returns the exit code and the output.
    fn run(&self, shell: &[&str], script: &str, env: &[(String, String)]) -> (i32, String) {
        let mut command = self.place.command(shell[0]);
        command.args(&shell[1..]).arg(script).env_remove("KEDGE_LOG").envs(&self.env);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let output = output_of(command).unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.code().unwrap(), text)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.place.path(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
    }
}

/// Replaces `${{ inputs.NAME }}` by the inputs.
fn evaluate(text: &str, inputs: &BTreeMap<&str, &str>) -> String {
    let mut text = text.to_owned();
    for (name, value) in inputs {
        text = text.replace(&format!("${{{{ inputs.{name} }}}}"), value);
    }
    assert!(!text.contains("${{"), "unknown expression: {text}");
    text
}

/// Runs the steps of the action. Returns the last exit code and the output of all.
fn act(machine: &Machine, given: &[(&str, &str)]) -> (i32, String) {
    let action = Yaml::read(ACTION);
    let mut inputs: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, input) in action.get("inputs").map() {
        match given.iter().find(|(key, _)| key == name) {
            Some((_, value)) => inputs.insert(name, value),
            None => inputs.insert(name, input.get("default").text()),
        };
    }
    assert!(given.iter().all(|(name, _)| inputs.contains_key(name)), "{given:?} are inputs");
    let mut all = String::new();
    let action_path = root().join(ACTION).parent().unwrap().display().to_string();
    for step in action.get("runs").get("steps").list() {
        assert_eq!(step.get("shell").text(), "bash", "each step of a composite action names its shell");
        let mut env: Vec<(String, String)> = step
            .find("env")
            .map_or(&[][..], Yaml::map)
            .iter()
            .map(|(name, value)| (name.clone(), evaluate(value.text(), &inputs)))
            .collect();
        for (name, file) in [("GITHUB_OUTPUT", "output"), ("GITHUB_STEP_SUMMARY", "summary")] {
            env.push((name.into(), machine.place.path(file).display().to_string()));
        }
        env.push(("GITHUB_ACTION_PATH".into(), action_path.clone()));
        let script = step.get("run").text();
        // The shell would execute an input that is inserted into a script.
        assert!(!script.contains("${{"), "{script}");
        let (code, text) =
            machine.run(&["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"], script, &env);
        all.push_str(&text);
        if code != 0 {
            return (code, all);
        }
    }
    (0, all)
}

#[test]
fn the_action_says_whether_a_program_survives() {
    needs_fuse!();
    let right = PROGRAM.replace("SYNC", "");
    let wrong = PROGRAM.replace("SYNC", ":");
    let check = "test -z \"$KEDGE_ACKED\" || test -e a.json";
    for (program, check, code, verdict) in
        [(&right, check, 0, "passed"), (&wrong, check, 1, "failed"), (&right, "false", 3, "none")]
    {
        let machine = Machine::new();
        let given = [("command", &program[..]), ("check", check), ("ack", "^saved"), ("from", "empty")];
        let (found, text) = act(&machine, &given);
        assert_eq!(found, code, "{text}");
        assert_eq!(machine.read("output"), format!("verdict={verdict}\n"));
        let summary = machine.read("summary");
        assert!(summary.starts_with("```text\n") && summary.ends_with("```\n"), "{summary}");
        assert_eq!(summary.contains("fsync(\".\")"), code == 1, "{summary}");
        assert!(text.contains(summary.lines().nth(1).unwrap()), "the log has the report: {text}");
        let sarif: serde_json::Value = serde_json::from_str(&machine.read("crash-test/crash.sarif")).unwrap();
        let run = &sarif["runs"][0];
        assert_eq!(run["results"].as_array().unwrap().len(), usize::from(code == 1), "{sarif:#}");
        assert_eq!(run["invocations"][0]["executionSuccessful"], code != 3, "{sarif:#}");
        assert_eq!(machine.read("crash-test/crash.xml").contains("<failure"), code == 1);
        let json: serde_json::Value = serde_json::from_str(&machine.read("crash-test/crash.json")).unwrap();
        assert_eq!(json["passed"], code == 0, "{json:#}");
        for file in ["run.kcr", "crash.html", "crash.txt"] {
            assert!(machine.place.path("crash-test").join(file).exists(), "{file}");
        }
    }
}

/// Inputs with blanks, quotes and patterns reach kedge as they were given.
#[test]
fn the_action_passes_options_and_checkers_on() {
    needs_fuse!();
    let machine = Machine::new();
    let program = PROGRAM.replace("SYNC", "").replace("a.json", "'a b.conf'");
    let given = [
        ("command", &program[..]),
        ("checker", "json"),
        ("explore-options", "--files\na *.conf\n--seed\n7\n"),
        ("reports", "out of tests"),
        ("budget", "50"),
        ("model", "ext4"),
    ];
    let (code, text) = act(&machine, &given);
    assert_eq!(code, 0, "{text}");
    let json: serde_json::Value = serde_json::from_str(&machine.read("out of tests/crash.json")).unwrap();
    assert_eq!((&json["checker"], &json["seed"]), (&"--checker json --files a *.conf".into(), &7.into()));
    assert_eq!(json["model"], "ext4");
}

#[test]
fn a_program_that_fails_ends_the_action_before_the_search() {
    needs_fuse!();
    let machine = Machine::new();
    let (code, text) = act(&machine, &[("command", "echo x > \"$KEDGE_DIR/f\"; exit 9"), ("check", "true")]);
    assert_eq!(code, 9, "{text}");
    assert!(!machine.place.path("output").exists() && !machine.place.path("crash-test/crash.xml").exists());
}

/// Each input has a description, and is used; the output is one that a step sets.
#[test]
fn the_action_uses_what_it_declares() {
    let action = Yaml::read(ACTION);
    let text = fs::read_to_string(root().join(ACTION)).unwrap();
    assert_eq!(action.get("runs").get("using").text(), "composite");
    for (name, input) in action.get("inputs").map() {
        assert!(input.get("description").text().len() > 10, "{name}");
        let is_required = input.find("required").is_some_and(|required| required.text() == "true");
        assert!(is_required != input.find("default").is_some(), "{name} is required or has a default");
        assert!(text.contains(&format!("${{{{ inputs.{name} }}}}")), "{name} is not used");
    }
    let verdict = action.get("outputs").get("verdict").get("value").text();
    assert_eq!(verdict, "${{ steps.explore.outputs.verdict }}");
    let steps = action.get("runs").get("steps").list();
    assert!(steps.iter().any(|step| step.find("id").is_some_and(|id| id.text() == "explore")));
}

/// Runs the scripts of the job with these variables. GitLab joins the lines of `before_script` and
/// `script` into one script.
fn run_job(machine: &Machine, given: &[(&str, &str)]) -> (i32, String) {
    let include = Yaml::read(INCLUDE);
    let job = include.get(".kedge-crash-test");
    let mut env: BTreeMap<String, String> = job
        .get("variables")
        .map()
        .iter()
        .map(|(name, value)| (name.clone(), value.text().to_owned()))
        .collect();
    for (name, value) in given {
        assert!(env.insert((*name).to_owned(), (*value).to_owned()).is_some(), "{name} is a variable");
    }
    let lines = ["before_script", "script"].iter().flat_map(|part| job.get(part).list());
    let script: Vec<&str> = lines.map(Yaml::text).collect();
    machine.run(&["sh", "-ec"], &script.join("\n"), &env.into_iter().collect::<Vec<_>>())
}

#[test]
fn the_job_for_gitlab_says_whether_a_program_survives() {
    needs_fuse!();
    for (sync, code) in [("", 0), (":", 1)] {
        let machine = Machine::new();
        let program = PROGRAM.replace("SYNC", sync);
        let given = [
            ("KEDGE_COMMAND", &program[..]),
            ("KEDGE_CHECK", "test -z \"$KEDGE_ACKED\" || test -e a.json"),
            ("KEDGE_ACK", "^saved it$"),
            ("KEDGE_FROM", "empty"),
            ("KEDGE_REPOSITORY", "https://example.org/kedgefs"),
        ];
        let (found, text) = run_job(&machine, &given);
        assert_eq!(found, code, "{text}");
        assert_eq!(text.contains("fsync(\".\")"), code == 1, "{text}");
        // The files that the job keeps exist.
        let include = Yaml::read(INCLUDE);
        let kept = include.get(".kedge-crash-test").get("artifacts");
        assert!(kept.get("paths").list().iter().all(|path| machine.place.path(path.text()).is_dir()));
        let junit = machine.read(kept.get("reports").get("junit").text());
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
        assert!(machine.read("crash-test/crash.sarif").contains("\"2.1.0\""));
    }
}

#[test]
fn the_job_for_gitlab_passes_options_and_checkers_on() {
    needs_fuse!();
    let machine = Machine::new();
    let program = PROGRAM.replace("SYNC", "").replace("a.json", "'a b.conf'");
    let given = [
        ("KEDGE_COMMAND", &program[..]),
        ("KEDGE_CHECKER", "json"),
        ("KEDGE_EXPLORE_OPTIONS", "--files\na *.conf\n--json=crash-test/crash.json"),
        ("KEDGE_REPOSITORY", "https://example.org/kedgefs"),
    ];
    let (code, text) = run_job(&machine, &given);
    assert_eq!(code, 0, "{text}");
    let json: serde_json::Value = serde_json::from_str(&machine.read("crash-test/crash.json")).unwrap();
    assert_eq!(json["checker"], "--checker json --files a *.conf");
}
