//! Samples under functions/samples/ whose dependencies are installed from a package registry, as their users deploy
//! them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::restorer::by_program;
use rekindle_e2e::{Folder, shared};

#[test]
fn a_heavy_import_is_restored() {
    let folder = Folder::sample("numpy-python", |t| t);
    by_program(shared().deploy(&folder));
    for _ in 0..2 {
        let answer = shared().fresh("restored", "numpy", "/?n=50").ok();
        assert_eq!(answer.start(), "restored");
        let body = answer.json();
        assert_eq!(body["n"], 50);
        assert!(body["error"].as_f64().unwrap() < 1e-6, "{body}");
    }
}

#[test]
fn a_flask_application_serves_as_it_is_booted_and_restored() {
    by_program(shared().deploy(&Folder::sample("flask-python", |t| t)));
    for (start, restores) in [("booted", 0), ("restored", 1)] {
        let page = shared().fresh(start, "flask", "/?name=%3CAda%3E").ok();
        assert_eq!(page.start(), start);
        assert_eq!(page.text(), "<h1>Hello, &lt;Ada&gt;!</h1>\n");
        assert!(
            page.header("content-type").starts_with("text/html"),
            "{:?}",
            page.headers
        );
        let echoed = shared()
            .admin("POST", "/function/flask/echo")
            .header("x-fn-force-start", start)
            .body("twelve bytes")
            .send()
            .ok();
        assert_eq!(echoed.start(), start);
        let body = echoed.json();
        assert_eq!(
            (body["method"].as_str(), body["length"].as_u64()),
            (Some("POST"), Some(12))
        );
        assert_eq!(body["request_id"], echoed.header("x-request-id"), "{body}");
        assert_eq!(
            body["restores"], restores,
            "its hook runs once in each restored instance: {body}"
        );
    }
    let missing = shared().get("flask", "/nowhere");
    assert_eq!(missing.status, 404, "{}", missing.text());
    assert_eq!(missing.header("x-fn-start"), "warm", "the application's own 404");
}
