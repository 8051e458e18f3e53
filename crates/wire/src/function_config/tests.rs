use super::parse::EXAMPLES;
use super::*;

const HELLO: &str = "name = \"hello\"\nruntime = \"python\"\nentry = \"main.handler\"\n";

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_shortest_config_gets_defaults_that_start() {
    let config = parse(HELLO).unwrap();
    assert_eq!(config.base, Base::Python);
    assert_eq!(config.memory, ByteSize(256 << 20));
    assert_eq!(config.timeout(), Duration::from_secs(30));
    assert!(config.snapshot && !config.unique);
    assert_eq!(config.network, Network::Egress);
}

#[test]
fn every_key_is_taken() {
    let config = parse(
        r#"
name = "shop"
runtime = "http"
command = ["./server", "-v"]
base = "node"
memory = "1GiB"
cpu = 0.5
timeout = "1m"
concurrency = 8
max_instances = 3
idle = "90s"
park = "10m"
min_warm = 2
min_parked = 0
tmp = "16MiB"
snapshot = false
network = "none"
[env]
MODE = "x"
[[warmup]]
path = "/ready?deep=1"
[[warmup]]
method = "POST"
path = "/"
body = "{}"
[hooks]
before_snapshot = "/freeze"
[build]
command = "make"
"#,
    )
    .unwrap();
    assert_eq!(config.command, ["./server", "-v"]);
    assert_eq!((config.idle_ms, config.park_ms), (90_000, 600_000));
    assert_eq!((config.min_warm, config.adaptive), (2, false));
    assert_eq!(config.network, Network::None);
    assert_eq!(config.warmup[0].method, "GET");
    assert_eq!(config.hooks.before_snapshot.as_deref(), Some("/freeze"));
    assert_eq!(config.build_command.as_deref(), Some("make"));
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let message = refused(&format!("{HELLO}memmory = \"1GiB\"\n"));
    assert!(message.contains("line 4"), "{message}");
    assert!(message.contains("memmory"), "{message}");
    assert!(message.contains("`memory`"), "names what is known: {message}");
}

#[test]
fn a_copy_is_asked_the_warm_up_requests_or_the_root_unless_none_is_rehearsed() {
    let asked = |text: &str| {
        let requests = parse(text).unwrap().rehearsed();
        requests
            .into_iter()
            .map(|r| format!("{} {}", r.method, r.path))
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(HELLO), ["GET /"]);
    let warmup = "[[warmup]]\nmethod = \"POST\"\npath = \"/load\"\n[[warmup]]\npath = \"/b\"\n";
    assert_eq!(asked(&format!("{HELLO}{warmup}")), ["POST /load", "GET /b"]);
    assert!(parse(HELLO).unwrap().rehearse);
    assert!(!parse(&format!("{HELLO}rehearse = false\n")).unwrap().rehearse);
    let wrong = refused(&format!("{HELLO}rehearse = \"no\"\n"));
    assert!(wrong.contains("`rehearse = true`"), "{wrong}");
}

#[test]
fn a_snapshot_may_have_to_be_one_whose_copies_share_no_random_number() {
    let config = parse(&format!("{HELLO}snapshot = \"unique\"\n")).unwrap();
    assert!(config.snapshot && config.unique);
    let config = parse(&format!("{HELLO}snapshot = false\n")).unwrap();
    assert!(!config.snapshot && !config.unique);
}

#[test]
fn a_value_of_another_type_is_refused_with_one_that_would_do() {
    for (line, example) in [
        ("timeout = 2", "timeout = \"30s\""),
        ("max_instances = \"many\"", "max_instances = 10"),
        ("snapshot = \"yes\"", "snapshot = true"),
        ("snapshot = 1", "snapshot = true"),
        ("[async]\nmax_age = 5", "max_age = \"1h\""),
    ] {
        let error = refused(&format!("{HELLO}{line}\n"));
        assert!(
            error.contains("line ") && error.contains(&format!("write it as in `{example}`")),
            "{error}"
        );
    }
    // Each example must be valid.
    for example in EXAMPLES {
        let key = example.split('=').next().unwrap().trim();
        let (top, more) = match key {
            "max_attempts" | "max_age" => ("", format!("[async]\n{example}\n")),
            "cron" => ("", format!("[[schedule]]\n{example}\n")),
            "timezone" | "overlap" | "missed" => ("", format!("[[schedule]]\ncron = \"@daily\"\n{example}\n")),
            "stream" => (
                "",
                format!("[[source]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\n{example}\n"),
            ),
            "batch" | "batch_window" | "max_deliveries" | "dead_letter" => {
                let dead = if key == "max_deliveries" {
                    "dead_letter = \"dead\"\n"
                } else {
                    ""
                };
                let source = "[[source]]\ntype = \"nats\"\nurl = \"nats://q:4222\"\nstream = \"S\"\n";
                ("", format!("{source}{dead}{example}\n"))
            }
            _ => (*example, String::new()),
        };
        let base = match key {
            "command" => "name = \"hello\"\nruntime = \"http\"\nbase = \"python\"\n",
            "port" | "protocol" => "name = \"hello\"\nruntime = \"http\"\ncommand = [\"./server\"]\n",
            "image" => "name = \"hello\"\n",
            "interface" => "name = \"hello\"\nruntime = \"http\"\n",
            _ => HELLO,
        };
        let rest: Vec<&str> = base.lines().filter(|l| l.split(" =").next() != Some(key)).collect();
        let text = format!("{top}\n{}\n{more}", rest.join("\n"));
        parse(&text).unwrap_or_else(|e| panic!("{example}: {e}"));
    }
}

#[test]
fn impossible_limits_are_refused_with_line_and_range() {
    for (line, fix) in [
        ("memory = \"1MiB\"", "\"16MiB\" to \"64GiB\""),
        ("memory = \"lots\"", "for example \"256MiB\""),
        ("cpu = 0", "0.05 to 64"),
        ("cpu = 1000.0", "0.05 to 64"),
        ("timeout = \"0s\"", "\"1s\" to \"900s\""),
        ("timeout = \"soon\"", "\"30s\""),
        ("concurrency = 0", "1 to 1000"),
        ("max_instances = 0", "1 to 10000"),
        ("min_parked = 11", "raise max_instances"),
        ("min_parked = 5000", "0 to 1000"),
        ("min_warm = 1001", "0 to 1000"),
        ("min_warm = 11", "raise max_instances"),
        ("min_warm = 5\nmin_parked = 6", "lower one"),
        ("fresh = true\nsnapshot = false", "remove snapshot = false"),
        ("fresh = true\nconcurrency = 2", "remove concurrency = 2"),
        ("park = \"8d\"", "\"0s\" to"),
        ("base = \"node\"", "remove the line"),
        ("network = \"all\"", "\"egress\""),
        ("command = [\"x\"]", "entry = \"file.function\""),
        ("env = { PORT = \"1\" }", "set by the platform"),
        ("env = { \"a b\" = \"1\" }", "letters, digits"),
        ("warmup = [{ path = \"x\" }]", "start with '/'"),
        ("warmup = [{ headers = { \"a b\" = \"1\" } }]", "letters, digits"),
        ("warmup = [{ headers = { X-Fn-Start = \"1\" } }]", "begin with x-fn-"),
        ("hooks = { after_restore = \"/x\" }", "http"),
    ] {
        let message = refused(&format!("{HELLO}{line}\n"));
        assert!(message.contains("line 4"), "{line}: {message}");
        assert!(message.contains(fix), "{line}: {message}");
    }
    let variable = |bytes: usize| format!("{HELLO}env = {{ BIG = \"{}\" }}\n", "x".repeat(bytes));
    parse(&variable((128 << 10) - 5)).unwrap();
    assert!(refused(&variable((128 << 10) - 4)).contains("put it into a file"));
}

#[test]
fn the_platform_decides_how_long_instances_are_kept_unless_it_is_told() {
    assert!(parse(HELLO).unwrap().adaptive);
    assert!(parse(&format!("{HELLO}min_warm = 1\n")).unwrap().adaptive);
    for line in ["idle = \"60s\"", "park = \"10m\""] {
        assert!(!parse(&format!("{HELLO}{line}\n")).unwrap().adaptive, "{line}");
    }
}

#[test]
fn bad_names_and_handlers_are_refused_with_the_rule() {
    assert!(refused(&HELLO.replace("hello", "He llo")).contains("line 1"));
    assert!(refused(&HELLO.replace("main.handler", "main")).contains("file.function"));
    assert!(refused(&HELLO.replace("main.handler", "../x.handler")).contains("file.function"));
    assert!(refused("name = \"a\"\nruntime = \"http\"\n").contains("command"));
    assert!(refused("name = \"a\"\nruntime = \"ruby\"\n").contains("line 2"));
    assert!(refused("name = \n").contains("line 1"));
}

#[test]
fn a_size_is_read_back_as_written() {
    for text in ["1KiB", "256MiB", "3GiB"] {
        assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
    }
    assert!("99999999999999999GiB".parse::<ByteSize>().is_err());
}

#[test]
fn an_image_brings_its_own_runtime_and_command() {
    let with = |more: &str| format!("name = \"shop\"\nimage = \"registry.example/shop:1\"\n{more}\n");
    let config = parse(&with("port = 80")).unwrap();
    let image = config.image.as_deref();
    assert_eq!(
        (config.runtime, image, config.port),
        (Runtime::Http, Some("registry.example/shop:1"), 80)
    );
    assert!(config.command.is_empty());
    assert_eq!(parse(&with("command = [\"serve\"]")).unwrap().command, ["serve"]);
    for (more, expected) in [
        ("runtime = \"python\"", "remove this line, or image"),
        ("base = \"node\"", "remove this line, or image"),
        ("entry = \"main.handler\"", "has no entry"),
        ("port = 0", "use 1 to 65535"),
        ("port = 65536", "use 1 to 65535"),
    ] {
        let error = refused(&with(more));
        assert!(error.contains(expected), "{more}: {error}");
    }
    for image in ["", "two words", "--quiet"] {
        let error = refused(&format!("name = \"shop\"\nimage = \"{image}\"\n"));
        assert!(error.contains("is not the name of an image"), "{image}: {error}");
    }
    assert!(refused("name = \"shop\"\n").contains("runtime is missing"));
    assert!(refused(&format!("{HELLO}port = 80\n")).contains("port is for images"));
}

#[test]
fn secrets_are_named_and_one_that_is_needed_at_the_boot_leaves_out_the_snapshot() {
    let with = |line: &str| format!("{HELLO}{line}\n");
    let plain = parse(&with("secrets = [\"DB_URL\", { name = \"KEY\", at = \"boot\" }]")).unwrap();
    let names: Vec<_> = plain.secrets.iter().map(|name| name.as_str()).collect();
    assert_eq!((names.as_slice(), plain.snapshot), (&["DB_URL", "KEY"][..], false));
    let restored = parse(&with("secrets = [\"DB_URL\"]")).unwrap();
    assert!(restored.snapshot && restored.deploys_without_secrets());
    assert!(!parse(HELLO).unwrap().deploys_without_secrets() && !plain.deploys_without_secrets());
    for (line, why) in [
        ("secrets = [\"db\"]", "use 1 to 64"),
        ("secrets = [\"PORT\"]", "the platform's"),
        ("secrets = [\"A\", \"A\"]", "named twice"),
        ("secrets = [\"A\"]\nenv = { A = \"1\" }", "named twice"),
        ("secrets = [{ name = \"A\", at = \"noon\" }]", "at = \"boot\""),
        (
            "secrets = [{ name = \"A\", at = \"boot\" }]\nsnapshot = \"unique\"",
            "leaves out the snapshot",
        ),
        (
            "secrets = [{ name = \"A\", at = \"boot\" }]\nfresh = true",
            "leaves out the snapshot",
        ),
        (
            "secrets = [{ name = \"A\", at = \"boot\" }]\nmin_parked = 1",
            "leaves out the snapshot",
        ),
    ] {
        assert!(refused(&with(line)).contains(why), "{line}: {}", refused(&with(line)));
    }
    let many: Vec<_> = (0..33).map(|n| format!("\"S_{n}\"")).collect();
    assert!(refused(&with(&format!("secrets = [{}]", many.join(", ")))).contains("more than 32"));
}
