use std::ffi::OsString;
use std::io::Write as _;

use clap::{CommandFactory as _, Parser as _};

use super::*;
use crate::args::{Cli, Command as Parsed};

fn root() -> Command {
    let mut root = Cli::command();
    root.build();
    root
}

/// The command line `words` with a settings file of this text named in it.
fn completed(text: &str, words: &[&str]) -> Result<CompletedCommandLine> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    let path = file.path().as_os_str().to_owned();
    let words = std::iter::once("fn").chain(words.iter().copied()).map(OsString::from);
    let words = words.chain([OsString::from("--config"), path]).collect();
    complete(&root(), words)
}

fn options(text: &str, words: &[&str]) -> Vec<String> {
    completed(text, words)
        .unwrap()
        .from
        .map(|(_, options)| options)
        .unwrap_or_default()
}

fn refusal(text: &str, words: &[&str]) -> String {
    let error = completed(text, words).unwrap_err();
    format!("{error:#}")
}

#[test]
fn a_file_says_what_the_command_line_does_not() {
    let text = "s3-bucket = \"all\"\n[worker]\nmemory = \"2GiB\"\n[gateway]\nlisten = \"127.0.0.1:1\"\n";
    let completed = completed(text, &["up", "--listen", "127.0.0.1:2"]).unwrap();
    let cli = Cli::try_parse_from(&completed.words).unwrap();
    let Parsed::Up(args) = cli.command else {
        panic!("not `up`")
    };
    assert_eq!(args.s3.s3_bucket, "all");
    assert_eq!(args.listen.port(), 2, "the command line wins");
    let (_, mut options) = completed.from.unwrap();
    options.sort();
    assert_eq!(options, ["--memory", "--s3-bucket"]);
}

#[test]
fn a_table_holds_for_its_role_and_for_up_whose_own_wins() {
    let text = "[gateway]\nlisten = \"127.0.0.1:1\"\n[up]\nlisten = \"127.0.0.1:3\"\n";
    let port = |words: &[&str]| {
        let words = completed(text, words).unwrap().words;
        let listen = words.iter().find_map(|w| w.to_str()?.strip_prefix("--listen="));
        listen.unwrap().to_owned()
    };
    assert_eq!(port(&["up"]), "127.0.0.1:3");
    assert_eq!(port(&["gateway"]), "127.0.0.1:1");
    assert!(options(text, &["scheduler"]).is_empty());
}

#[test]
fn flags_and_lists_become_options() {
    let text = "[gateway]\ntrust-paths = true\nno-paths = false\nclient-exempt = [\"10.0.0.0/8\", \"::1/128\"]\n";
    let words = completed(text, &["gateway"]).unwrap().words;
    let words: Vec<_> = words.iter().filter_map(|w| w.to_str()).collect();
    assert!(words.contains(&"--trust-paths") && !words.contains(&"--no-paths"));
    let exempt = words.iter().filter(|w| w.starts_with("--client-exempt="));
    assert_eq!(exempt.count(), 2);
}

#[test]
fn what_is_no_option_is_named_with_the_nearest_one() {
    assert!(
        refusal("[worker]\nmemroy = \"1GiB\"\n", &["worker"])
            .ends_with("[worker] memroy is no option: did you mean memory?")
    );
    assert!(refusal("quux = 1\n", &["up"]).contains("`fn up --help` lists them"));
    assert!(
        options(
            "[events]\nbatches = 8\n[[events.server]]\nurl = \"nats://q\"\n",
            &["up"]
        )
        .is_empty()
    );
    assert!(refusal("[wroker]\nmemory = \"1GiB\"\n", &["up"]).contains("there is no role [wroker]"));
    assert!(refusal("[gateway]\nmemory = \"1GiB\"\n", &["worker"]).contains("[gateway] memory is no option"));
    assert!(refusal("[gateway]\ntrust-paths = \"yes\"\n", &["gateway"]).ends_with("is true or false"));
    assert!(refusal("[gateway]\nlisten = [\"a\", \"b\"]\n", &["gateway"]).ends_with("takes one text or number"));
    assert!(refusal("listen = ", &["up"]).contains("is not TOML: line 1"));
    assert!(refusal("[gateway]\nclient-exempt = []\n", &["gateway"]).contains("is an empty list"));
    assert!(refusal("overwrite = true\n", &["restore-backup", "x"]).contains("overwrite is no option"));
}

#[test]
fn what_is_given_wins_over_what_it_does_not_go_with() {
    let words = completed("[gateway]\ntrust-paths = true\n", &["gateway", "--no-paths"])
        .unwrap()
        .words;
    assert!(!words.contains(&OsString::from("--trust-paths")));
}

#[test]
fn an_option_that_may_stand_alone_is_turned_on_and_off() {
    let traces = |value: &str| {
        let words = completed(&format!("[up]\ntraces = {value}\n"), &["up"]).unwrap().words;
        words
            .iter()
            .filter_map(|w| w.to_str())
            .find(|w| w.starts_with("--traces"))
            .map(str::to_owned)
    };
    assert_eq!(traces("true").as_deref(), Some("--traces"));
    assert_eq!(traces("false"), None);
    assert_eq!(traces("\"http://c:4317\"").as_deref(), Some("--traces=http://c:4317"));
}

#[test]
fn each_role_has_its_own_address_and_up_that_of_the_gateway() {
    let text = "[scheduler]\nlisten = \"127.0.0.1:1\"\ndata = \"/srv/s\"\n";
    assert!(options(text, &["up"]).is_empty());
    assert_eq!(options(text, &["scheduler"]).len(), 2);
}

#[test]
fn tools_know_where_the_platform_is() {
    let text = "s3-bucket = \"b\"\n[up]\ndata = \"/srv/r\"\nmemory = \"1GiB\"\n";
    assert_eq!(options(text, &["backup", "/tmp/b.tar"]), ["--data"]);
    assert_eq!(options(text, &["snapshot", "list"]), ["--data", "--s3-bucket"]);
    assert_eq!(options(text, &["cluster", "token"]), ["--data"]);
}

#[test]
fn a_platform_can_be_stopped_whatever_the_file_says() {
    assert!(completed("quux = 1\n", &["down"]).unwrap().from.is_none());
    assert!(completed("quux = 1\n", &["up", "--help"]).unwrap().from.is_none());
    assert!(completed("quux = 1\n", &["backup", "/tmp/b.tar"]).is_err());
}

#[test]
fn secrets_are_not_in_messages() {
    let done = completed("[scheduler]\ndatabase = \"mysql://u:hush@h/n\"\n", &["scheduler"]).unwrap();
    let error = Cli::try_parse_from(&done.words).unwrap_err().to_string();
    assert!(
        error.contains("hush") && !redacted(error.clone(), done.secrets.iter()).contains("hush"),
        "{error}"
    );
    assert!(!refusal("database = \"hush\" \"\n", &["scheduler"]).contains("hush"));
}

#[test]
fn clients_do_not_read_it() {
    assert!(completed("quux = 1\n", &["list"]).unwrap().from.is_none());
}

#[test]
fn the_namespace_of_clients_is_at_the_top_and_no_option_of_a_role() {
    let of = |text: &str| Settings::parse(PathBuf::from("rekindle.toml"), text).unwrap();
    assert_eq!(of("").namespace().unwrap(), Namespace::default());
    let team = of("namespace = \"team\"\nmemory = \"1GiB\"\n");
    assert_eq!(team.namespace().unwrap().as_str(), "team");
    assert!(!team.of(&root(), "worker").unwrap().contains_key("namespace"));
    for wrong in ["namespace = \"Team\"", "namespace = [\"team\"]"] {
        let error = format!("{:#}", of(wrong).namespace().unwrap_err());
        assert!(
            error.contains("rekindle.toml: namespace") && error.contains("use 1 to 63"),
            "{error}"
        );
    }
}

#[test]
fn a_named_file_must_be_there() {
    let words = ["fn", "up", "--config", "/no/such/rekindle.toml"].map(OsString::from);
    let error = complete(&root(), words.into()).unwrap_err();
    assert!(format!("{error:#}").contains("/no/such/rekindle.toml cannot be read"));
}

/// The reference page's tables: written anew with `REKINDLE_UPDATE_DOCS=1`.
#[test]
fn the_reference_page_lists_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/settings.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let root = root();
    let mut wanted = page.clone();
    for role in ROLES {
        let (begin, end) = (
            format!("<!-- options of {role} -->\n"),
            format!("<!-- end of {role} -->"),
        );
        let (before, rest) = wanted
            .split_once(&begin)
            .unwrap_or_else(|| panic!("no \"{begin}\" in the page"));
        let (_, after) = rest
            .split_once(&end)
            .unwrap_or_else(|| panic!("no \"{end}\" in the page"));
        let table = table(descend(&root, role).unwrap(), role);
        wanted = format!("{before}{begin}{table}{end}{after}");
    }
    if std::env::var_os("REKINDLE_UPDATE_DOCS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    } else {
        assert!(
            page == wanted,
            "docs/reference/settings.md is not what options say: run with REKINDLE_UPDATE_DOCS=1"
        );
    }
}

/// A role's options as Markdown. Of roles beside `up`, all; of `up`, those that no other role has.
fn table(command: &Command, role: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::from("\n| option | variable | default | meaning |\n|---|---|---|---|\n");
    let root = root();
    let elsewhere = |long: &str| {
        let others = ROLES
            .iter()
            .filter(|other| **other != "up")
            .filter_map(|other| descend(&root, other));
        role == "up"
            && others
                .flat_map(|c| c.get_arguments())
                .any(|a| a.get_long() == Some(long))
    };
    let mut args: Vec<_> = command.get_arguments().filter(|arg| is_setting(arg)).collect();
    args.sort_by_key(|arg| arg.get_long());
    for arg in args {
        let long = arg.get_long().unwrap_or_default();
        if elsewhere(long) {
            continue;
        }
        let code = |text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!("`{text}`")
            }
        };
        let variable = arg
            .get_env()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        assert!(!variable.is_empty(), "{role}: --{long} has no variable");
        let default: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|v| v.to_string_lossy().into_owned())
            .collect();
        let default = if arg.get_action().takes_values() {
            default.join(",")
        } else {
            String::new()
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = first_sentence(&help).replace('|', "\\|").replace('<', "&lt;");
        writeln!(out, "| `{long}` | {} | {} | {help} |", code(&variable), code(&default)).unwrap();
    }
    out.push('\n');
    out
}

/// The first sentence, or its first clauses where it is longer than a cell should be.
fn first_sentence(help: &str) -> String {
    let help = help.replace('\n', " ");
    let sentence = help.split(". ").next().unwrap_or_default().trim_end_matches('.');
    if sentence.len() <= 150 {
        return sentence.to_owned();
    }
    let end = sentence[..150].rfind([';', ':', ',']).unwrap_or(150);
    format!("{} …", &sentence[..end])
}
