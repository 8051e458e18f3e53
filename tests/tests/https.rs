//! A platform that its users reach by HTTPS: `fn` and browsers' HTTP/2, functions by hosts of their own, the API by its
//! own, and certificates that change while it runs.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rekindle_e2e::{Folder, Options, Platform, binaries, until};

const SOON: Duration = Duration::from_secs(30);

/// An authority of the test's own.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // One that is named as what it signs looks self-signed to OpenSSL.
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "authority of a test");
        let certificate = params.self_signed(&key).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        Self { certificate, issuer }
    }

    /// Puts a new certificate for these hosts, and its key, in place of what is there.
    fn put(&self, directory: &Path, name: &str, hosts: &[&str]) {
        let key = rcgen::KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        let params = rcgen::CertificateParams::new(hosts).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (ending, text) in [("crt", certificate.pem()), ("key", key.serialize_pem())] {
            let new = directory.join(format!("{name}.new"));
            fs::write(&new, text).unwrap();
            fs::rename(&new, directory.join(format!("{name}.{ending}"))).unwrap();
        }
    }
}

#[test]
fn a_platform_is_used_over_https_while_its_certificates_change() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = dir.path().join("ca.pem");
    fs::write(&ca, authority.certificate.pem()).unwrap();
    let pairs = dir.path().join("pairs");
    fs::create_dir(&pairs).unwrap();
    authority.put(&pairs, "default", &["localhost", "api.example.org"]);
    authority.put(&pairs, "functions", &["*.example.org"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut options = Options::default();
    options.args.extend(
        [
            "--tls-dir",
            pairs.to_str().unwrap(),
            "--tls-listen",
            &format!("127.0.0.1:{port}"),
            "--domain",
            "example.org",
            "--api-host",
            "api.example.org",
            "--hsts",
            "24h",
        ]
        .map(str::to_owned),
    );
    let platform = Platform::start_with(options);
    let folder = Folder::python("seven", "", "def handler(event, context):\n    return 7\n");
    platform.deploy(&folder);

    let by_https = |host: &str, args: &[&str]| -> Output {
        Command::new(binaries::directory().join("fn"))
            .args(args)
            .env("FN_URL", format!("https://{host}:{port}"))
            .env("FN_KEY", platform.key())
            .env("FN_CA", &ca)
            .output()
            .unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    let invoked = by_https("localhost", &["invoke", "seven", "--json"]);
    assert!(invoked.status.success(), "{}", text(&invoked));
    let answer: serde_json::Value = serde_json::from_slice(&invoked.stdout).unwrap();
    assert_eq!(answer["status"], 200, "{answer}");
    let listed = by_https("localhost", &["list"]);
    assert!(
        listed.status.success() && text(&listed).contains("seven"),
        "{}",
        text(&listed)
    );
    let mistaken = by_https("127.0.0.1", &["list"]);
    assert!(
        !mistaken.status.success() && text(&mistaken).contains("not valid for name"),
        "{}",
        text(&mistaken)
    );

    // As browsers do, who know the names from the DNS.
    let curl = |host: &str, path: &str| -> (String, String) {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--http2",
                "--max-time",
                "30",
                "-w",
                "\n%{http_code} %{http_version}",
            ])
            .args(["--connect-to", &format!("::127.0.0.1:{port}")])
            .args(["-H", &format!("Authorization: Bearer {}", platform.key())])
            .arg("--cacert")
            .arg(&ca)
            .arg(format!("https://{host}{path}"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{host}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, how) = text.rsplit_once('\n').unwrap();
        (how.to_owned(), body.to_owned())
    };
    assert_eq!(
        curl("seven.example.org", "/v1/status"),
        ("200 2".to_owned(), "7".to_owned())
    );
    let (how, body) = curl("api.example.org", "/v1/functions");
    assert_eq!(how, "200 2", "{body}");
    assert_eq!(curl("1--seven.example.org", "/v1/status").0, "200 2");
    for (host, path) in [("none.example.org", "/"), ("9--seven.example.org", "/")] {
        assert_eq!(curl(host, path).0, "404 2", "{host}");
    }

    // A name that no certificate had.
    let new = || {
        let args = ["-sS", "--max-time", "30", "--connect-to"];
        let mut command = Command::new("curl");
        command
            .args(args)
            .arg(format!("::127.0.0.1:{port}"))
            .arg("--cacert")
            .arg(&ca);
        command
            .arg("https://new.example.net/healthz")
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(!new());
    fs::write(pairs.join("functions.crt"), "half of").unwrap();
    authority.put(&pairs, "new", &["new.example.net"]);
    until("the new certificate is shown", SOON, || new().then_some(()));
    // The one that became unusable is as before.
    assert_eq!(curl("seven.example.org", "/").1, "7");
    assert!(
        platform.log().contains("a certificate cannot be used"),
        "{}",
        platform.log_tail(20)
    );
}
