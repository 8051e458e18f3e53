//! People and machines without keys of the platform, by the command line. The tests look at who signs in at an identity
//! provider, what that gives them, and what the audit log says of it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs};

use rekindle_e2e::{Folder, Options, Platform, binaries, shared, skip, until};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
const SEVEN: &str = "def handler(event, context):\n    return 7\n";

/// An OpenID Connect provider, until it is dropped.
struct Provider {
    process: Child,
    address: String,
}

impl Provider {
    /// Starts one whose ID tokens last for so long. `None` where it is not installed.
    fn start(lasts_s: u32) -> Option<Self> {
        let place = env::var_os("REKINDLE_OIDC").map(PathBuf::from);
        let place = place.filter(|place| place.join("node_modules/oidc-provider").is_dir());
        let Some(place) = place else {
            skip("REKINDLE_OIDC names no identity provider; scripts/install-oidc-provider.sh installs one");
            return None;
        };
        let mut process = Command::new("node")
            .arg("provider.mjs")
            .arg(lasts_s.to_string())
            .current_dir(place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let said = BufReader::new(process.stdout.take().unwrap()).read_line(&mut address);
        assert!(said.unwrap() > 0, "the identity provider does not start");
        Some(Self {
            process,
            address: address.trim().to_owned(),
        })
    }

    /// The token of a machine that the provider knows.
    fn token_of_machine(&self) -> String {
        let form = "grant_type=client_credentials&resource=urn:rekindle&scope=deploy";
        let answer = curl(&[
            "-u",
            "ci:of-the-machine",
            "-d",
            form,
            &format!("{}/token", self.address),
        ]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["access_token"].as_str().unwrap().to_owned()
    }

    /// Does in a browser what somebody does who opens the address that `fn login` shows.
    fn sign_in(&self, shown: &str, who: &str) {
        let jar = tempfile::NamedTempFile::new().unwrap();
        let jar = jar.path().to_str().unwrap();
        let visit = |args: &[&str]| {
            let page = curl(&[&["-L", "-c", jar, "-b", jar, "-w", "\n%{url_effective}"], args].concat());
            let (page, at) = page.rsplit_once('\n').unwrap();
            (page.to_owned(), at.to_owned())
        };
        let field = |page: &str, name: &str| {
            let after = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap().1;
            format!("{name}={}", after.split_once('"').unwrap().0)
        };
        let (page, _) = visit(&[shown]);
        let (xsrf, code) = (field(&page, "xsrf"), field(&page, "user_code"));
        let device = format!("{}/device", self.address);
        let (_, at) = visit(&["-d", &xsrf, "-d", &code, "-d", "confirm=yes", &device]);
        let login = format!("prompt=login&login={who}&password=any");
        let (_, at) = visit(&["-d", &login, &at]);
        let (page, at) = visit(&["-d", "prompt=consent", &at]);
        assert!(at.starts_with(&device), "{at}: {page}");
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "30"])
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Somebody with a home of their own, at a gateway.
struct Person<'a> {
    home: &'a Path,
    url: String,
}

impl Person<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binaries::directory().join("fn"));
        command
            .args(args)
            .env("HOME", self.home)
            .env("FN_URL", &self.url)
            .env("NO_COLOR", "1");
        // No key of this machine's platform is theirs.
        command
            .env("FN_DATA", self.home)
            .env_remove("FN_KEY")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    #[track_caller]
    fn well(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "fn {args:?}: {}", text(&output));
        text(&output)
    }

    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "fn {args:?}: {}", text(&output));
        text(&output)
    }

    /// Runs `fn login` while somebody signs in.
    fn login(&self, provider: &Provider, who: &str) -> Output {
        let mut command = self.command(&["login", &self.url]);
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let shown = first
            .split(' ')
            .find(|word| word.starts_with("http"))
            .unwrap_or_else(|| panic!("{first}"));
        provider.sign_in(shown, who);
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let mut output = running.wait_with_output().unwrap();
        output.stderr = rest.join("\n").into_bytes();
        output
    }
}

fn platform(provider: &Provider) -> Platform {
    let mut options = Options::default();
    let args = ["--oidc-issuer", &provider.address, "--oidc-login-client", "fn-cli"];
    options.args.extend(args.map(str::to_owned));
    Platform::start_with(options)
}

/// The audit log: the actor, what was done to what, and the outcome of each entry.
fn audit(platform: &Platform) -> Vec<String> {
    let output = platform.cli(&["audit", "--export", "jsonl"]);
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let told = lines.lines().map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        let of = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        [of("actor"), of("action"), of("object"), of("outcome")].join(" ")
    });
    told.collect()
}

#[test]
fn somebody_signs_in_by_the_command_line_and_is_who_the_audit_log_names() {
    // Refreshed at each command: they end within the time in which fn refreshes.
    let Some(provider) = Provider::start(31) else { return };
    let platform = platform(&provider);
    let home = tempfile::tempdir().unwrap();
    let ada = Person {
        home: home.path(),
        url: platform.url(),
    };
    let told = ada.refused(&["list"]);
    assert!(told.contains("fn login"), "{told}");
    let early = ada.login(&provider, "ada");
    assert!(
        !early.status.success() && text(&early).contains("'sub=ada'"),
        "{}",
        text(&early)
    );
    let added = platform.cli(&[
        "access",
        "add",
        "--issuer",
        &provider.address,
        "--claim",
        "groups=ops",
        "--role",
        "deployer",
    ]);
    assert!(added.status.success(), "{}", text(&added));
    let rule = text(&added).split(':').next().unwrap().to_owned();

    let login = ada.login(&provider, "ada");
    let name = format!("oidc:ada@{}", provider.address);
    assert!(
        login.status.success() && text(&login).contains(&name),
        "{}",
        text(&login)
    );
    let kept = home.path().join(".config/rekindle/logins.json");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let whoami: Value = serde_json::from_str(&ada.well(&["whoami", "--json"])).unwrap();
    assert_eq!(whoami["name"], *name);
    assert_eq!(whoami["grants"][0]["rule"], *rule);
    let folder = Folder::python("hers", "auth = \"key\"\n", SEVEN);
    ada.well(&["deploy", folder.path().to_str().unwrap()]);
    assert!(ada.well(&["invoke", "hers"]).contains('7'));
    let told = ada.refused(&["key", "list"]);
    assert!(told.contains("role admin") && told.contains("fn access add"), "{told}");
    // Several at once refresh the token once.
    let before = fs::read_to_string(&kept).unwrap();
    until("the token is refreshed", SOON, || {
        ada.well(&["list"]);
        (fs::read_to_string(&kept).unwrap() != before).then_some(())
    });
    let mut many: Vec<Child> = Vec::new();
    for _ in 0..6 {
        many.push(
            ada.command(&["list"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
    }
    for one in many {
        let output = one.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }

    // Another account of the same issuer has another group.
    let home_of_eve = tempfile::tempdir().unwrap();
    let eve = Person {
        home: home_of_eve.path(),
        url: platform.url(),
    };
    let login = eve.login(&provider, "eve");
    assert!(
        !login.status.success() && text(&login).contains("no rule lets eve"),
        "{}",
        text(&login)
    );

    let removed = platform.cli(&["access", "rm", &rule]);
    assert!(removed.status.success(), "{}", text(&removed));
    let told = ada.refused(&["list"]);
    assert!(told.contains("no rule lets ada"), "{told}");
    assert!(ada.well(&["logout"]).contains("signed out"));
    assert!(!fs::read_to_string(&kept).unwrap().contains("refresh_token"));
    let told = ada.refused(&["whoami"]);
    assert!(told.contains("fn login"), "{told}");
    let log = audit(&platform);
    for expected in [
        format!(
            "admin add_rule {rule} deployer *.default groups=ops at {} ok",
            provider.address
        ),
        format!("{name} deploy hers 1 ok"),
        format!("admin remove_rule {rule} ok"),
    ] {
        assert!(log.contains(&expected), "{expected}: {log:#?}");
    }
    assert!(platform.cli(&["audit", "verify"]).status.success());
}

#[test]
fn a_machine_deploys_with_its_own_token_and_nothing_else() {
    let Some(provider) = Provider::start(300) else { return };
    let platform = platform(&provider);
    let token = provider.token_of_machine();
    let with = |token: &str, args: &[&str]| {
        let command = &mut binaries::directory().join("fn");
        Command::new(command)
            .args(args)
            .env("FN_URL", platform.url())
            .env("FN_KEY", token)
            .output()
            .unwrap()
    };
    let folder = Folder::python("built", "", SEVEN);
    let deploy = ["deploy", folder.path().to_str().unwrap()];
    let told = text(&with(&token, &deploy));
    assert!(
        told.contains("fn access add --issuer") && told.contains("'sub=ci'"),
        "{told}"
    );
    let added = platform.cli(&[
        "access",
        "add",
        "--issuer",
        &provider.address,
        "--claim",
        "sub=ci",
        "--claim",
        "scope=deploy",
        "--role",
        "deployer",
        "--function",
        "built",
        "--expires",
        "30d",
    ]);
    assert!(added.status.success(), "{}", text(&added));
    let deployed = with(&token, &deploy);
    assert!(deployed.status.success(), "{}", text(&deployed));
    let other = Folder::python("other", "", SEVEN);
    let told = with(&token, &["deploy", other.path().to_str().unwrap()]);
    assert!(
        !told.status.success() && text(&told).contains("role deployer"),
        "{}",
        text(&told)
    );
    let forged = format!("{}x", &token[..token.len() - 1]);
    let told = with(&forged, &["list"]);
    assert!(
        !told.status.success() && text(&told).contains("the token is not taken"),
        "{}",
        text(&told)
    );
    let log = audit(&platform);
    let expected = format!("oidc:ci@{} deploy built 1 ok", provider.address);
    assert!(log.contains(&expected), "{log:#?}");
    // A rule that anybody at the issuer meets, and an issuer that the gateways do not know.
    let open = platform.cli(&[
        "access",
        "add",
        "--issuer",
        &provider.address,
        "--claim",
        "aud=x",
        "--role",
        "reader",
    ]);
    assert!(
        !open.status.success() && text(&open).contains("use sub"),
        "{}",
        text(&open)
    );
    let strange = [
        "access",
        "add",
        "--issuer",
        "https://id.example.com",
        "--claim",
        "sub=x",
        "--role",
        "reader",
    ];
    let strange = platform.cli(&strange);
    assert!(
        strange.status.success() && text(&strange).contains("--oidc-issuer https://id.example.com"),
        "{}",
        text(&strange)
    );
}

/// An authority for certificates of clients, and of the gateway.
struct Authority {
    pem: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: rcgen::Issuer::new(params, key),
        }
    }

    /// Puts a certificate with this common name, and its key, into a directory.
    fn put(&self, directory: &Path, name: &str, change: impl FnOnce(&mut rcgen::CertificateParams)) -> [PathBuf; 2] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = ["crt", "key"].map(|ending| directory.join(format!("{name}.{ending}")));
        fs::write(&files[0], certificate.pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }
}

#[test]
fn a_machine_shows_a_certificate_that_a_rule_names_and_is_told_why_another_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let clients = at("clients.pem");
    fs::write(&clients, &own.pem).unwrap();
    let pairs = at("pairs");
    fs::create_dir(&pairs).unwrap();
    own.put(&pairs, "default", |_| {});
    let uri = rcgen::SanType::URI("spiffe://example.org/ci".try_into().unwrap());
    let good = own.put(dir.path(), "ci", |params| params.subject_alt_names.push(uri));
    let ended = own.put(dir.path(), "ended", |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1)
    });
    let strange = other.put(dir.path(), "strange", |_| {});
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut options = Options::default();
    let words = [
        "--tls-dir",
        pairs.to_str().unwrap(),
        "--tls-listen",
        &format!("127.0.0.1:{port}"),
        "--client-ca",
        clients.to_str().unwrap(),
    ];
    options.args.extend(words.map(str::to_owned));
    let platform = Platform::start_with(options);
    platform.deploy(&Folder::python("open", "", SEVEN));
    platform.deploy(&Folder::python("keyed", "auth = \"key\"\n", SEVEN));
    let ca = at("ca.pem");
    fs::write(&ca, &own.pem).unwrap();
    let url = format!("https://localhost:{port}");
    let with = |[certificate, key]: &[PathBuf; 2], args: &[&str]| {
        let mut command = Command::new(binaries::directory().join("fn"));
        command
            .args(args)
            .env("HOME", dir.path())
            .env("FN_URL", &url)
            .env("FN_CA", &ca)
            .env_remove("FN_KEY");
        command
            .arg("--client-cert")
            .arg(certificate)
            .arg("--client-key")
            .arg(key);
        text(&command.output().unwrap())
    };
    let calls = |[certificate, key]: &[PathBuf; 2], path: &str, header: &str| {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "30",
                "-w",
                " %{http_code}",
                "-H",
                header,
                "--cacert",
            ])
            .arg(&ca)
            .arg("--cert")
            .arg(certificate)
            .arg("--key")
            .arg(key)
            .arg(format!("{url}{path}"))
            .output();
        text(&output.unwrap())
    };
    let told = with(&good, &["whoami"]);
    assert!(
        told.contains("no rule lets") && told.contains("spiffe://example.org/ci"),
        "{told}"
    );
    assert!(with(&ended, &["whoami"]).contains("it has expired"));
    assert!(with(&strange, &["whoami"]).contains("--client-ca"));
    // What asks for nothing answers anybody.
    assert_eq!(calls(&strange, "/function/open", "x: y"), "7 200");

    let rule = platform.cli(&[
        "access",
        "add",
        "--certificate",
        "spiffe://example.org/ci",
        "--role",
        "deployer",
    ]);
    assert!(rule.status.success(), "{}", text(&rule));
    let rule = text(&rule).split(':').next().unwrap().to_owned();
    let told = with(&good, &["whoami"]);
    assert!(
        told.contains("cert:spiffe://example.org/ci") && told.contains("deployer for the namespace default"),
        "{told}"
    );
    let folder = Folder::python("built", "", SEVEN);
    let told = with(&good, &["deploy", folder.path().to_str().unwrap()]);
    assert!(told.contains("live"), "{told}");
    assert_eq!(calls(&good, "/function/keyed", "x: y"), "7 200");
    assert!(calls(&strange, "/function/keyed", "x: y").ends_with(" 401"));
    assert!(calls(&good, "/v1/functions", "x: y").ends_with(" 200"));
    let of_a_page = calls(&good, "/v1/functions", "Origin: https://elsewhere.example");
    assert!(
        of_a_page.ends_with(" 401") && of_a_page.contains("page of another origin"),
        "{of_a_page}"
    );

    // Another authority, while it runs; then no rule.
    fs::write(at("new.pem"), &other.pem).unwrap();
    fs::rename(at("new.pem"), &clients).unwrap();
    until("the authority is replaced", SOON, || {
        with(&good, &["whoami"]).contains("--client-ca").then_some(())
    });
    assert!(with(&strange, &["whoami"]).contains("no rule lets"));
    fs::write(at("new.pem"), format!("{}{}", own.pem, other.pem)).unwrap();
    fs::rename(at("new.pem"), &clients).unwrap();
    until("the authority is back", SOON, || {
        with(&good, &["whoami"]).contains(&rule).then_some(())
    });
    let removed = platform.cli(&["access", "rm", &rule]);
    assert!(removed.status.success(), "{}", text(&removed));
    assert!(with(&good, &["list"]).contains("no rule lets"));
    let log = audit(&platform);
    for expected in [
        format!("admin add_rule {rule} deployer *.default spiffe://example.org/ci ok"),
        "cert:spiffe://example.org/ci deploy built 1 ok".to_owned(),
        format!("admin remove_rule {rule} ok"),
    ] {
        assert!(log.contains(&expected), "{expected}: {log:#?}");
    }
}

#[test]
fn a_key_is_made_listed_and_revoked_and_the_audit_log_has_it() {
    let made = shared().cli(&[
        "key",
        "create",
        "--role",
        "invoker",
        "--function",
        "nobody",
        "of-the-test",
    ]);
    assert!(made.status.success(), "{}", text(&made));
    let key = String::from_utf8(made.stdout.clone()).unwrap().trim().to_owned();
    assert!(key.starts_with("fnk_"), "the key alone is on standard output: {key}");
    let told = String::from_utf8(made.stderr).unwrap();
    let id = told.split(':').next().unwrap();
    let listed = shared().cli(&["key", "list"]);
    let listed = text(&listed);
    assert!(
        listed.contains(id) && listed.contains("of-the-test") && !listed.contains(&key),
        "{listed}"
    );
    let with = |args: &[&str]| {
        let output = Command::new(binaries::directory().join("fn"))
            .args(args)
            .env("FN_URL", shared().url())
            .env("FN_KEY", &key)
            .output();
        text(&output.unwrap())
    };
    assert!(with(&["whoami"]).contains(id));
    assert!(with(&["list"]).contains("role reader"));
    let revoked = shared().cli(&["key", "revoke", id]);
    assert!(revoked.status.success(), "{}", text(&revoked));
    assert!(with(&["whoami"]).contains("is not valid"));
    let log = audit(shared());
    for expected in [
        format!("admin create_key {id} invoker nobody ok"),
        format!("admin revoke_key {id} ok"),
    ] {
        assert!(log.contains(&expected), "{expected}: {log:#?}");
    }
    let shown = text(&shared().cli(&["audit"]));
    assert!(
        shown.contains(&format!("admin  create_key  default  {id} invoker nobody  ok")),
        "{shown}"
    );
    let whole = shared().cli(&["audit", "verify"]);
    assert!(whole.status.success(), "{}", text(&whole));
}
