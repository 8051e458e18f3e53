use clap::CommandFactory as _;
use clap::error::ErrorKind;

use super::functions::ForcedStart;
use super::*;

fn parse(words: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_parse_from(std::iter::once(&"fn").chain(words)).map(|cli| cli.command)
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn invoke_takes_what_its_help_shows() {
    let words = [
        "invoke",
        "api",
        "--path",
        "/users?limit=3",
        "-X",
        "DELETE",
        "-i",
        "-H",
        "a: b:c",
        "--start",
        "restored",
    ];
    let Ok(Command::Invoke(args)) = parse(&words) else {
        panic!("not understood");
    };
    assert_eq!(args.headers, [("a".to_owned(), "b:c".to_owned())]);
    assert_eq!(args.start, Some(ForcedStart::Restored));
    assert_eq!(args.method.as_deref(), Some("DELETE"));
}

#[test]
fn more_than_a_year_to_wait_is_a_usage_error_with_the_range() {
    let year = "31536000";
    for words in [
        vec!["down", "--wait"],
        vec!["up", "--wait"],
        vec!["invoke", "hello", "--wait"],
        vec!["deploy", ".", "--wait"],
        vec!["drain", "worker-b", "--wait", "--limit"],
    ] {
        let with = |seconds| parse(&[words.as_slice(), &[seconds]].concat());
        with(year).unwrap();
        let error = with("18446744073709551615").unwrap_err().to_string();
        assert!(error.contains("0..=31536000"), "{error}");
    }
}

#[test]
fn a_name_no_function_can_have_is_a_usage_error_with_the_rule() {
    let error = parse(&["invoke", "Hello_World"]).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("use 1 to 48"), "{error}");
}

#[test]
fn a_function_is_named_alone_in_the_namespace_of_the_option_or_with_its_own() {
    let namespaced = |words: &[&str]| {
        let cli = Cli::try_parse_from(std::iter::once(&"fn").chain(words)).unwrap();
        let Command::Describe(args) = cli.command else {
            panic!("not understood");
        };
        args.name.within(&cli.client.namespace.unwrap_or_default()).to_string()
    };
    assert_eq!(namespaced(&["describe", "hello"]), "hello");
    assert_eq!(namespaced(&["describe", "hello", "-n", "team"]), "hello.team");
    assert_eq!(namespaced(&["--namespace", "team", "describe", "hello"]), "hello.team");
    assert_eq!(namespaced(&["-n", "team", "describe", "hello.other"]), "hello.other");
    assert_eq!(namespaced(&["-n", "team", "describe", "hello.default"]), "hello");
    let error = parse(&["describe", "hello", "-n", "a--b"]).unwrap_err();
    assert!(error.to_string().contains("use 1 to 63"), "{error}");
}

#[test]
fn an_event_has_no_path_of_its_own() {
    let error = parse(&["invoke", "a", "--event", "--path", "/x"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
}

#[test]
fn a_header_without_a_colon_is_refused() {
    assert!(parse(&["invoke", "a", "-H", "nothing"]).is_err());
}

#[test]
fn every_listing_takes_json() {
    for words in [
        &["list", "--json"][..],
        &["status", "--json"],
        &["instances", "--json"],
        &["describe", "a", "--json"],
        &["logs", "a", "--json"],
        &["doctor", "--json"],
        &["deploy", "--json"],
        &["demo", "a", "--json"],
    ] {
        assert!(parse(words).is_ok(), "{words:?}");
    }
}

#[test]
fn regions_and_acceleration_are_taken_and_others_refused_with_the_rule() {
    let Ok(Command::Up(args)) = parse(&["up", "--region", "1M", "--acceleration", "8"]) else {
        panic!("not understood");
    };
    assert_eq!((args.codec.region.bytes(), args.codec.acceleration.get()), (1 << 20, 8));
    let Ok(Command::Worker(args)) = parse(&["worker"]) else {
        panic!("not understood");
    };
    assert_eq!(args.codec.codec(), rekindle_snapshotter::Codec::default());
    for (words, rule) in [
        (["up", "--region", "96K"], "power of two from 4K"),
        (["worker", "--region", "8M"], "to 4M"),
        (["up", "--acceleration", "33"], "from 1 (smallest) to 32"),
        (["worker", "--acceleration", "0"], "from 1 (smallest) to 32"),
    ] {
        let error = parse(&words).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(rule), "{error}");
    }
}

#[test]
fn completions_are_written_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let Ok(Command::Completions { shell }) = parse(&["completions", shell]) else {
            panic!("not understood");
        };
        let mut out = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "fn", &mut out);
        assert!(String::from_utf8(out).unwrap().contains("deploy"));
    }
}

#[test]
fn up_and_down_agree_on_the_directories() {
    let Ok(Command::Up(up)) = parse(&["up", "--data", "/d"]) else {
        panic!("not understood");
    };
    let Ok(Command::Down(down)) = parse(&["down", "--data", "/d"]) else {
        panic!("not understood");
    };
    assert_eq!(up.places.data, down.places.data);
    assert_eq!(up.places.run, down.places.run);
    assert_eq!(up.listen.to_string(), "127.0.0.1:8080");
}

#[test]
fn https_needs_a_certificate_and_its_key() {
    for words in [
        &["gateway", "--tls-cert", "a.crt"][..],
        &["gateway", "--tls-key", "a.key"],
        &["up", "--hsts", "24h"],
        &["up", "--redirect-https", "443"],
        &["up", "--tls-dir", "d", "--redirect-https", "0"],
        &["gateway", "--domain", "http://example.org"],
        &["gateway", "--api-host", "10.0.0.1"],
    ] {
        assert!(parse(words).is_err(), "{words:?}");
    }
    let words = ["up", "--tls-dir", "d", "--hsts", "24h", "--redirect-https", "443"];
    let Ok(Command::Up(args)) = parse(&words) else {
        panic!("not understood");
    };
    assert_eq!(args.https.redirect_https, Some(443));
    let words = [
        "gateway",
        "--tls-cert",
        "c",
        "--tls-key",
        "k",
        "--tls-dir",
        "d",
        "--domain",
        "A.example,b.example",
    ];
    let Ok(Command::Gateway(args)) = parse(&words) else {
        panic!("not understood");
    };
    let domains: Vec<&str> = args.https.domain.iter().map(|d| d.as_str()).collect();
    assert_eq!(domains, ["a.example", "b.example"]);
}
