use std::path::Path;
use std::{fs, io};

use rcgen::{CertificateParams, KeyPair};

use super::*;

/// A certificate for these hosts and its key, PEM.
fn made(hosts: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn put(directory: &Path, name: &str, hosts: &[&str]) -> String {
    let (certificate, key) = made(hosts);
    fs::write(directory.join(format!("{name}.crt")), &certificate).unwrap();
    fs::write(directory.join(format!("{name}.key")), key).unwrap();
    certificate
}

fn directory_of(path: &Path) -> CertificateFiles {
    CertificateFiles {
        directory: Some(path.to_owned()),
        ..CertificateFiles::default()
    }
}

fn counted(metrics: &Metrics, outcome: &str) -> bool {
    let (_, text) = rekindle_telemetry::metrics::exposition(&metrics.registry, &http::HeaderMap::new());
    text.contains(&format!(
        "rekindle_gateway_certificate_reads_total{{outcome=\"{outcome}\"}}"
    ))
}

#[test]
fn the_certificate_with_the_name_is_shown_then_a_wildcard_then_the_default_one() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a", &["a.example.org"]);
    put(dir.path(), "default", &["example.org"]);
    put(dir.path(), "wild", &["*.example.org", "*.API.example.net"]);
    put(dir.path(), "z", &["a.example.org", "z.example.org"]);
    let certificates = Certificates::open(directory_of(dir.path()), &Metrics::new()).unwrap();
    for (host, pair) in [
        ("a.example.org", "a"),
        ("A.Example.Org", "a"),
        ("z.example.org", "z"),
        ("other.example.org", "wild"),
        ("x.api.example.net", "wild"),
        ("x.y.example.org", "default"),
        ("example.org", "default"),
        ("elsewhere.example", "default"),
    ] {
        assert_eq!(&*certificates.shown_for(Some(host)), pair, "{host}");
    }
    assert_eq!(&*certificates.shown_for(None), "default");
}

#[test]
fn a_new_pair_is_taken_up_and_a_broken_one_leaves_the_one_of_before() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a", &["a.example.org"]);
    let metrics = Metrics::new();
    let certificates = Certificates::open(directory_of(dir.path()), &metrics).unwrap();
    let shown = |host: &str| certificates.table.read().pair_for(Some(host)).certified.clone();
    let first = shown("a.example.org");
    certificates.look(&metrics);
    assert!(Arc::ptr_eq(&first, &shown("a.example.org")), "nothing has changed");
    put(dir.path(), "a", &["a.example.org"]);
    certificates.look(&metrics);
    let second = shown("a.example.org");
    assert_ne!(first.cert, second.cert);
    assert!(counted(&metrics, "loaded") && !counted(&metrics, "failed"));
    // Half of a new pair.
    fs::write(dir.path().join("a.crt"), made(&["a.example.org"]).0).unwrap();
    put(dir.path(), "b", &["b.example.org"]);
    certificates.look(&metrics);
    assert_eq!(second.cert, shown("a.example.org").cert);
    assert_eq!(
        &*certificates.shown_for(Some("b.example.org")),
        "b",
        "others are taken up meanwhile"
    );
    assert!(counted(&metrics, "failed"));
    for junk in [
        "",
        "junk",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    ] {
        fs::write(dir.path().join("a.crt"), junk).unwrap();
        certificates.look(&metrics);
        assert_eq!(second.cert, shown("a.example.org").cert, "{junk:?}");
    }
    // A pair goes with its files, but the last one stays.
    for name in ["a.crt", "b.crt"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    certificates.look(&metrics);
    assert_eq!(certificates.expiries().len(), 2);
    let third = put(dir.path(), "c", &["c.example.org"]);
    certificates.look(&metrics);
    assert_eq!(certificates.expiries().len(), 1);
    let pair = shown("a.example.org");
    let (_, shown) = x509_parser::pem::parse_x509_pem(third.as_bytes()).unwrap();
    assert_eq!(pair.cert[0].as_ref(), shown.contents);
}

#[test]
fn a_certificate_without_a_use_is_an_error_that_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let open = |files| Certificates::open(files, &Metrics::new()).map(drop).unwrap_err();
    assert!(matches!(open(directory_of(dir.path())), CertificatesError::None(_)));
    let missing = directory_of(&dir.path().join("missing"));
    assert!(
        matches!(open(missing), CertificatesError::Look { source, .. } if source.kind() == io::ErrorKind::NotFound)
    );
    put(dir.path(), "a", &["a.example.org"]);
    put(dir.path(), "b", &["b.example.org"]);
    let (crt, key) = (dir.path().join("a.crt"), dir.path().join("b.key"));
    let mixed = CertificateFiles {
        pair: Some((crt.clone(), key.clone())),
        directory: Some(dir.path().to_owned()),
        ..CertificateFiles::default()
    };
    let error = open(mixed);
    let CertificatesError::Pair(PairError::Mismatch { certificate, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(certificate, &crt);
    // In a directory the others are used.
    fs::copy(&key, dir.path().join("a.key")).unwrap();
    let metrics = Metrics::new();
    let certificates = Certificates::open(directory_of(dir.path()), &metrics).unwrap();
    assert_eq!(&*certificates.shown_for(Some("a.example.org")), "b");
    assert!(counted(&metrics, "failed"));
}

#[test]
fn it_is_told_until_when_a_certificate_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example.org".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2031, 5, 17);
    fs::write(dir.path().join("a.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(dir.path().join("a.key"), key.serialize_pem()).unwrap();
    let metrics = Metrics::new();
    let certificates = Certificates::open(directory_of(dir.path()), &metrics).unwrap();
    metrics.observe_certificates(move || certificates.expiries());
    let (_, text) = rekindle_telemetry::metrics::exposition(&metrics.registry, &http::HeaderMap::new());
    let line = "rekindle_gateway_certificate_expiry_seconds{certificate=\"a\"} 1936742400";
    assert!(text.contains(line), "{text}");
}
