//! The program of a function: its command and its environment.

use std::collections::BTreeMap;

use rekindle_confined::image::{AGENT, Config};
use rekindle_wire::function_config::{Base, Interface, Runtime};
use rekindle_wire::internal::VersionSpec;

use super::isolate::processors;

/// Environment variables from which JavaScript runtimes read more options. Each option loads an agent that keeps copies
/// from sharing random numbers drawn ahead.
const AGENTS: [(&str, &str); 2] = [
    ("NODE_OPTIONS", "--require=/opt/rekindle/node/lib/copies.js"),
    ("BUN_OPTIONS", "--preload=/opt/rekindle/node/lib/copies.js"),
];
/// That agent in the root filesystems of runtimes. Container images have [`AGENT`].
const RUNTIME_AGENT: &str = "/opt/rekindle/node/lib/copies.js";
/// Where the server of Lambda's runtime interface listens for the runtime.
const LAMBDA_API: &str = "127.0.0.1:9001";

/// What is started in a sandbox.
pub(super) struct Program {
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) cwd: String,
}

impl Program {
    /// The bootstrap of a runtime, which loads no function yet.
    pub(super) fn unloaded(spec: &VersionSpec) -> Self {
        let mut env = base_environment(spec.config.base);
        env.push(format!("PORT={}", spec.config.port));
        env.push("FN_LOAD=later".to_owned());
        Self::with_environment(spec, env)
    }

    /// The program of a runtime, or of a folder.
    pub(super) fn of(spec: &VersionSpec) -> Self {
        Self::with_environment(spec, environment(spec))
    }

    fn with_environment(spec: &VersionSpec, env: Vec<String>) -> Self {
        Self {
            argv: command(spec),
            env,
            cwd: "/app".to_owned(),
        }
    }

    /// The program of a container image. A command of `fn.toml` replaces the image's.
    pub(super) fn of_image(spec: &VersionSpec, image: Config) -> Self {
        let env = image_environment(spec, image.env);
        let argv = match spec.config.command.as_slice() {
            [] => image.command,
            command => expanded_command(command, &env),
        };
        Self {
            argv: served(spec, "/", argv),
            env,
            cwd: image.cwd,
        }
    }
}

/// Returns the command of a runtime; see docs/reference/runtime-contract.md.
fn command(spec: &VersionSpec) -> Vec<String> {
    let words: &[&str] = match spec.config.runtime {
        Runtime::Python => &["/usr/bin/python3", "-u", "/opt/rekindle/python/bootstrap.py"],
        Runtime::Node => &[
            "/usr/bin/node",
            "--require",
            "/opt/rekindle/node/lib/preload.js",
            "/opt/rekindle/node/bootstrap.js",
        ],
        Runtime::Http => {
            let command = expanded_command(&spec.config.command, &environment(spec));
            return served(spec, "/app/", command);
        }
    };
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// Returns the command of a function with what serves its interface, which is in the directory `files`.
fn served(spec: &VersionSpec, files: &str, mut command: Vec<String>) -> Vec<String> {
    if spec.config.interface == Interface::Lambda {
        command.insert(0, format!("{files}{}", rekindle_lambda::PATH));
    }
    command
}

fn expanded_command(command: &[String], environment: &[String]) -> Vec<String> {
    // A shell expands variables itself, by its own rules.
    if is_script(command) {
        return command.to_owned();
    }
    command.iter().map(|word| expanded(word, environment)).collect()
}

/// Returns whether a command is a shell with a script in its arguments.
fn is_script(command: &[String]) -> bool {
    const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "busybox"];
    let program = command.first().and_then(|program| program.rsplit('/').next());
    let has_script = |word: &String| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
    program.is_some_and(|program| SHELLS.contains(&program)) && command.iter().any(has_script)
}

/// Replaces `$NAME` and `${NAME}` in a word of a command with the value from the environment. `$$NAME` stands for
/// `$NAME`. Names that are not in the environment stay as they are: a shell in the command may know them.
fn expanded(word: &str, environment: &[String]) -> String {
    let value = |name: &str| {
        let variables = environment.iter().filter_map(|variable| variable.split_once('='));
        variables
            .rev()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    };
    let mut text = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let from = &rest[at..];
        let escaped = usize::from(from.starts_with("$$"));
        let (length, name) = reference(&from[escaped..]);
        match value(name).filter(|_| !name.is_empty()) {
            Some(_) if escaped == 1 => text.push_str(&from[1..=length]),
            Some(value) => text.push_str(value),
            None => text.push_str(&from[..escaped + length]),
        }
        rest = &from[escaped + length..];
    }
    text + rest
}

/// Returns the length of the reference that `text` begins with, and the name in it. The first byte of `text` is `$`.
fn reference(text: &str) -> (usize, &str) {
    let braced = text.starts_with("${");
    let name = &text[if braced { 2 } else { 1 }..];
    let end = name
        .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .unwrap_or(name.len());
    match (braced, name[end..].starts_with('}')) {
        (true, true) => (end + 3, &name[..end]),
        (true, false) => (1, ""),
        (false, _) => (end + 1, &name[..end]),
    }
}

/// Where Python looks for modules in an `http` function, after the function's own `PYTHONPATH`. Versions that were
/// built before the first of these names was given have the second.
const PYTHON_PATH: &str = "/app/.rekindle/site-packages:/app/.rekindle/python:/opt/rekindle/python";

/// Returns the environment variables common to all functions of a root filesystem.
fn base_environment(base: Base) -> Vec<String> {
    vec![
        format!("PATH={}", base.search_path()),
        "HOME=/tmp".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        "LANG=C.UTF-8".to_owned(),
    ]
}

/// Returns the variables that say what the function is.
fn own_environment(spec: &VersionSpec) -> Vec<String> {
    let config = &spec.config;
    let mib = config.memory.0 >> 20;
    let mut env = vec![
        format!("PORT={}", config.port),
        format!("FN_NAME={}", spec.function.name()),
        format!("FN_VERSION={}", spec.version),
        format!("FN_MEMORY_MIB={mib}"),
        format!("FN_TIMEOUT_S={}", config.timeout_ms.div_ceil(1000)),
        format!("AWS_LAMBDA_FUNCTION_NAME={}", spec.function.name()),
        format!("AWS_LAMBDA_FUNCTION_VERSION={}", spec.version),
        format!("AWS_LAMBDA_FUNCTION_MEMORY_SIZE={mib}"),
    ];
    if let Some(entry) = &config.entry {
        env.push(format!("FN_HANDLER={entry}"));
    }
    if config.interface == Interface::Lambda {
        env.extend(lambda_environment(spec));
    }
    env
}

/// Returns what Lambda's runtimes expect, and the function cannot set.
fn lambda_environment(spec: &VersionSpec) -> Vec<String> {
    let config = &spec.config;
    // A runtime waits for its restore before it takes an event, so it cannot be warmed up before a snapshot.
    let is_told = config.snapshot && config.warmup.is_empty();
    vec![
        format!("AWS_LAMBDA_RUNTIME_API={LAMBDA_API}"),
        format!(
            "AWS_LAMBDA_INITIALIZATION_TYPE={}",
            if is_told { "snap-start" } else { "on-demand" }
        ),
        format!("AWS_LAMBDA_LOG_GROUP_NAME=/rekindle/{}", spec.function.name()),
        format!("AWS_LAMBDA_LOG_STREAM_NAME={}/{}", spec.function.name(), spec.version),
    ]
}

/// Returns what Lambda's runtimes expect where the function says nothing else. `root` is where its code is.
fn lambda_defaults(spec: &VersionSpec, root: &str) -> Vec<String> {
    if spec.config.interface != Interface::Lambda {
        return Vec::new();
    }
    vec![
        format!("_HANDLER={}", spec.config.entry.as_deref().unwrap_or_default()),
        format!("LAMBDA_TASK_ROOT={root}"),
        "AWS_REGION=us-east-1".to_owned(),
        "AWS_DEFAULT_REGION=us-east-1".to_owned(),
        "TZ=:UTC".to_owned(),
    ]
}

/// Returns the environment of a container image, given what the image itself sets.
fn image_environment(spec: &VersionSpec, image: BTreeMap<String, String>) -> Vec<String> {
    let processors = processors(spec);
    let usual = [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "HOME=/tmp".to_owned(),
        "TMPDIR=/tmp".to_owned(),
        "LANG=C.UTF-8".to_owned(),
        format!("GOMAXPROCS={processors}"),
        format!("OMP_NUM_THREADS={processors}"),
    ];
    let pair = |variable: &String| {
        let (name, value) = variable.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    let mut variables: BTreeMap<_, _> = usual.iter().filter_map(pair).collect();
    variables.extend(lambda_defaults(spec, "/var/task").iter().filter_map(pair));
    variables.extend(image);
    variables.extend(spec.config.env.clone());
    for (name, option) in AGENTS {
        let agent = option.replace(RUNTIME_AGENT, &format!("/{AGENT}"));
        let more = variables.remove(name).map(|value| format!(" {value}"));
        variables.insert(name.to_owned(), agent + &more.unwrap_or_default());
    }
    variables.extend(own_environment(spec).iter().filter_map(pair));
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// Returns the environment of a function; see docs/reference/runtime-contract.md.
pub(super) fn environment(spec: &VersionSpec) -> Vec<String> {
    let config = &spec.config;
    let mut env = base_environment(config.base);
    env.extend(lambda_defaults(spec, "/app"));
    env.extend(own_environment(spec));
    let mut own: BTreeMap<_, _> = config.env.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    if config.runtime == Runtime::Http {
        let first = own.remove("PYTHONPATH").filter(|path| !path.is_empty());
        let first = first.map(|path| path + ":").unwrap_or_default();
        env.push(format!("PYTHONPATH={first}{PYTHON_PATH}"));
        env.push("PYTHONUNBUFFERED=1".to_owned());
    }
    // For programs that ask the kernel on which processors they may run. The kernel names all processors of the host.
    let threads = ["GOMAXPROCS", "OMP_NUM_THREADS"].into_iter();
    let processors = processors(spec);
    env.extend(
        threads
            .filter(|name| !config.env.contains_key(*name))
            .map(|name| format!("{name}={processors}")),
    );
    // The command of the runtime `node` loads the agent already.
    if config.runtime == Runtime::Http && config.base.runtime() == Some(Runtime::Node) {
        for (name, agent) in AGENTS {
            let more = own.remove(name).map(|value| format!(" {value}"));
            own.insert(name, format!("{agent}{}", more.unwrap_or_default()));
        }
    }
    // Programs take the first of two values.
    env.retain(|variable| variable.split_once('=').is_none_or(|(name, _)| !own.contains_key(name)));
    env.extend(own.into_iter().map(|(name, value)| format!("{name}={value}")));
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;

    #[test]
    fn a_variable_has_one_value_which_is_the_function_s_own() {
        let has = |settings: &str, name: &str| {
            let environment = environment(&spec(&format!("runtime = \"http\"\ncommand = [\"serve\"]\n{settings}")));
            let values = environment
                .iter()
                .filter_map(|variable| variable.strip_prefix(name)?.strip_prefix('='));
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        let usual = "/usr/local/bin:/usr/bin:/bin";
        assert_eq!(has("", "PATH"), [usual]);
        assert_eq!(
            has("base = \"python\"", "PATH"),
            [format!("/app/.rekindle/python/bin:{usual}")]
        );
        assert_eq!(
            has("base = \"node22\"", "PATH"),
            [format!("/app/node_modules/.bin:{usual}")]
        );
        let own = "[env]\nPATH = \"/app/bin\"\nPYTHONPATH = \"/app/src\"\nHOME = \"/app\"";
        assert_eq!(has(own, "PATH"), ["/app/bin"]);
        assert_eq!(has(own, "HOME"), ["/app"]);
        assert_eq!(has(own, "PYTHONPATH"), [format!("/app/src:{PYTHON_PATH}")]);
        assert_eq!(has("", "PYTHONPATH"), [PYTHON_PATH]);
    }

    #[test]
    fn lambda_s_runtimes_are_started_by_what_serves_their_interface() {
        let with = |settings: &str| spec(&format!("runtime = \"http\"\ninterface = \"lambda\"\n{settings}"));
        let plain = with("entry = \"app.handler\"\n[env]\nAWS_REGION = \"eu-west-1\"");
        assert_eq!(Program::of(&plain).argv, ["/app/.rekindle/lambda", "./bootstrap"]);
        let has = |spec: &VersionSpec, variable: &str| Program::of(spec).env.iter().any(|known| known == variable);
        for variable in [
            "AWS_LAMBDA_RUNTIME_API=127.0.0.1:9001",
            "_HANDLER=app.handler",
            "LAMBDA_TASK_ROOT=/app",
            "AWS_REGION=eu-west-1",
            "AWS_LAMBDA_INITIALIZATION_TYPE=snap-start",
        ] {
            assert!(has(&plain, variable), "{variable}: {:?}", Program::of(&plain).env);
        }
        assert!(!has(&plain, "AWS_REGION=us-east-1"));
        for settings in ["snapshot = false", "[[warmup]]\npath = \"/a\""] {
            assert!(
                has(&with(settings), "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand"),
                "{settings}"
            );
        }
        let config = Config {
            command: vec!["/lambda-entrypoint.sh".to_owned()],
            env: BTreeMap::from([("LAMBDA_TASK_ROOT".to_owned(), "/task".to_owned())]),
            ..Config::default()
        };
        let image = spec("image = \"./a.tar\"\ninterface = \"lambda\"");
        let program = Program::of_image(&image, config);
        assert_eq!(program.argv, ["/.rekindle/lambda", "/lambda-entrypoint.sh"]);
        assert!(
            program.env.contains(&"LAMBDA_TASK_ROOT=/task".to_owned()),
            "{:?}",
            program.env
        );
        assert!(program.env.contains(&"_HANDLER=".to_owned()));
    }

    #[test]
    fn a_command_has_what_the_environment_has() {
        let environment = ["PORT=8080", "MODEL=small", "MODEL=large", "EMPTY="].map(str::to_owned);
        for (word, is) in [
            ("--port=$PORT", "--port=8080"),
            ("${PORT}0:$MODEL/$EMPTY.", "80800:large/."),
            ("$$PORT ${$PORT}", "$PORT ${8080}"),
            (
                "$1 $? $$ $ ${PORT $UNKNOWN ${UNKNOWN} $PORTS",
                "$1 $? $$ $ ${PORT $UNKNOWN ${UNKNOWN} $PORTS",
            ),
            ("é$PORT é$", "é8080 é$"),
            ("$$${PORT}", "$$8080"),
            ("", ""),
        ] {
            assert_eq!(expanded(word, &environment), is, "{word}");
        }
    }

    #[test]
    fn a_script_is_left_to_its_shell() {
        let is = |words: &[&str]| is_script(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert!(is(&["sh", "-c", "serve $PORT"]) && is(&["/bin/bash", "-euc", "serve $PORT"]));
        assert!(!is(&["sh", "start.sh", "$PORT"]) && !is(&["python3", "-c", "print()"]) && !is(&[]));
    }
}
