//! Packages of Python and of Node, from folders and registries.

use super::*;

#[tokio::test]
async fn a_wheel_in_the_folder_is_installed_and_compiled_and_the_second_time_cached() {
    let Some(shop) = BuildFixture::open() else { return };
    let wheel = wheel("demo", "");
    let folder = || {
        let tar = python_app().file("requirements.txt", "--no-index\n./wheels/demo-1.0-py3-none-any.whl\n");
        tar.entry(
            "wheels/demo-1.0-py3-none-any.whl",
            EntryType::Regular,
            "",
            0o644,
            &wheel,
        )
    };
    let first = match shop.build(PYTHON, folder()).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    let names = names(&first);
    assert!(names.contains(&".rekindle/python/demo.py".to_owned()), "{names:?}");
    assert!(names.contains(&".rekindle/site-packages".to_owned()), "{names:?}");
    for compiled in [
        ".rekindle/python/__pycache__/demo.cpython-311.pyc",
        "__pycache__/main.cpython-311.pyc",
    ] {
        assert!(names.contains(&compiled.to_owned()), "{names:?}");
    }
    assert!(!shop.told().contains("cache"));
    let second = shop.build(PYTHON, folder()).await.unwrap();
    assert!(shop.told().contains("taken from the cache"));
    assert_eq!(blake3::hash(&first), blake3::hash(&second));
    // In another place, without that cache.
    let other = BuildFixture::open().unwrap();
    assert_eq!(
        blake3::hash(&other.build(PYTHON, folder()).await.unwrap()),
        blake3::hash(&first)
    );
}

#[tokio::test]
async fn a_package_from_the_registry_is_installed() {
    let Some(shop) = BuildFixture::open() else { return };
    let folder = python_app().file("requirements.txt", "six==1.16.0\n");
    let layer = match shop.build(PYTHON, folder).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&".rekindle/python/six.py".to_owned()));
    // A handler that comes with a package.
    let tar = Tar::default().file("requirements.txt", "six==1.16.0\n");
    shop.build("runtime = \"python\"\nentry = \"six.moves\"\n", tar)
        .await
        .unwrap();
    let tar = Tar::default().file("requirements.txt", "six==1.16.0\n");
    let error = shop.build(PYTHON, tar).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig);
}

#[tokio::test]
async fn a_package_that_does_not_exist_fails_with_pips_words() {
    let Some(shop) = BuildFixture::open() else { return };
    let folder = python_app().file("requirements.txt", "rekindle-no-such-package==9.9.9\n");
    let error = shop.build(PYTHON, folder).await.unwrap_err();
    if unreachable_registry(&error) {
        return;
    }
    assert_eq!(error.code(), ErrorCode::BuildFailed);
    assert!(
        error
            .to_string()
            .contains("No matching distribution found for rekindle-no-such-package==9.9.9"),
        "{error}"
    );
}

#[tokio::test]
async fn a_package_with_source_only_is_built() {
    let Some(shop) = BuildFixture::open() else { return };
    // This package never had a wheel.
    let folder = python_app().file("requirements.txt", "docopt==0.6.2\n");
    let layer = match shop.build(PYTHON, folder).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&".rekindle/python/docopt.py".to_owned()));
}

#[tokio::test]
async fn a_registry_that_is_not_allowed_is_refused_by_name() {
    let Some(shop) = BuildFixture::open() else { return };
    let list = "--index-url https://index.example.org/simple
six==1.16.0
";
    let error = shop
        .build(PYTHON, python_app().file("requirements.txt", list))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::BuildFailed, "{error}");
    let text = error.to_string();
    for words in [
        "refused: index.example.org:443",
        "the operator allows pypi.org",
        "--build-allow",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", "{\"dependencies\": {\"x\": \"1\"}}")
        .file(
            ".npmrc",
            "registry=http://10.1.2.3:4873/
fetch-retries=0
",
        );
    let error = shop.build(NODE, tar).await.unwrap_err();
    assert!(error.to_string().contains("refused: 10.1.2.3:4873"), "{error}");
}

#[tokio::test]
async fn a_registry_that_the_operator_names_is_reached_wherever_it_is() {
    let Some(shop) = BuildFixture::open() else { return };
    // An index of one wheel, on the host's loopback.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let wheel = wheel("demo", "");
    let page = "<a href=\"/demo-1.0-py3-none-any.whl\">demo-1.0-py3-none-any.whl</a>";
    let index = axum::Router::new()
        .route(
            "/simple/demo/",
            axum::routing::get(move || async move { axum::response::Html(page) }),
        )
        .route(
            "/demo-1.0-py3-none-any.whl",
            axum::routing::get(move || async move { wheel }),
        );
    tokio::spawn(async move { axum::serve(listener, index).await });
    let network = BuildNetwork {
        public: false,
        allow: vec![address.to_string().parse().unwrap()],
    };
    let list = format!(
        "--index-url http://{address}/simple
demo
"
    );
    let tar = || python_app().file("requirements.txt", &list);
    let layer = shop.build_with(PYTHON, tar(), &network).await.unwrap();
    assert!(names(&layer).contains(&".rekindle/python/demo.py".to_owned()));
    let other = BuildFixture::open().unwrap();
    let error = other.build(PYTHON, tar()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("refused: {address}")), "{error}");
}

#[tokio::test]
async fn install_scripts_of_node_packages_run_in_the_sandbox() {
    let Some(shop) = BuildFixture::open() else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    let package = "{\"dependencies\": {\"inner\": \"file:./inner\"}}";
    let script = format!(
        "id -u > /app/said; cat {0} >> /app/said || echo no host file >> /app/said; echo x > /etc/x || echo no etc >> \
         /app/said",
        secret.path().display()
    );
    let inner = serde_json::json!({"name": "inner", "version": "1.0.0", "scripts": {"install": script}}).to_string();
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", package)
        .file("inner/package.json", &inner)
        .file("inner/index.js", "");
    let layer = match shop.build(NODE, tar).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    let all = names(&layer);
    assert!(all.iter().any(|name| name.starts_with("node_modules/inner")), "{all:?}");
    assert_eq!(
        content(&layer, "said").unwrap(),
        "100000
no host file
no etc
"
    );
}

#[tokio::test]
async fn a_node_package_from_the_registry_is_installed_from_its_lock() {
    let Some(shop) = BuildFixture::open() else { return };
    let package = "{\"name\":\"f\",\"version\":\"1.0.0\",\"dependencies\": {\"ms\": \"2.1.3\"}}";
    let lock = "{\"name\":\"f\",\"version\":\"1.0.0\",\"lockfileVersion\":3,\"requires\":true,\"packages\":{\
        \"\":{\"name\":\"f\",\"version\":\"1.0.0\",\"dependencies\":{\"ms\":\"2.1.3\"}},\
        \"node_modules/ms\":{\"version\":\"2.1.3\",\
        \"integrity\":\"sha512-6FlzubTLZG3J2a/NVCAleEhjzq5oxgHyaCU9yYXvcLsvoVaHJq/s5xXI6/\
        XXP6tz7R9xAOtHnSO/tXtF3WRTlA==\"}}}";
    let folder = || {
        Tar::default()
            .file("index.js", "")
            .file("package.json", package)
            .file("package-lock.json", lock)
    };
    let layer = match shop.build(NODE, folder()).await {
        Err(e) if unreachable_registry(&e) => return,
        built => built.unwrap(),
    };
    assert!(names(&layer).contains(&"node_modules/ms/index.js".to_owned()));
    assert!(shop.told().contains("npm ci"));
    assert_eq!(
        blake3::hash(&shop.build(NODE, folder()).await.unwrap()),
        blake3::hash(&layer)
    );
}

#[tokio::test]
async fn settings_of_npm_with_control_characters_are_refused() {
    let Some(shop) = BuildFixture::open() else { return };
    for (package, npmrc, named) in [
        (r#"{"dependencies": {"x\u0007": "1"}}"#, "", r#"package.json: "x\u{7}""#),
        (r#"{"dependencies": {"x": "1\n2"}}"#, "", "package.json: \"x\""),
        (
            r#"{"dependencies": {"x": "1"}}"#,
            "registry=a\u{1b}[2J",
            ".npmrc: \"registry=a",
        ),
    ] {
        let tar = Tar::default()
            .file("index.js", "")
            .file("package.json", package)
            .file(".npmrc", npmrc);
        let error = shop.build(NODE, tar).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
        assert!(
            error.to_string().contains(named) && !error.to_string().contains('\u{1b}'),
            "{error}"
        );
    }
}

#[tokio::test]
async fn uploaded_node_modules_are_used_as_they_are() {
    let Some(shop) = BuildFixture::open() else { return };
    let tar = Tar::default()
        .file("index.js", "")
        .file("package.json", "{\"dependencies\": {\"x\": \"1\"}}")
        .file("node_modules/x/index.js", "");
    let layer = shop.build(NODE, tar).await.unwrap();
    assert!(names(&layer).contains(&"node_modules/x/index.js".to_owned()));
    assert!(shop.told().contains("used as it is"));
}
