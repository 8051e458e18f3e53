//! Container images with programs of AWS's Lambda clients, laid out as AWS's base images: the entry point names the
//! handler, which is the image's command, and starts the runtime. What they answer is compared with what the program
//! answers under AWS's emulator.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rekindle_e2e::lambda::{
    JAVA_EVENTS, NODE_24, assert_alike, emulated, greets, has_a_snapshot, install, invoke, python_is_alike, sample,
};
use rekindle_e2e::{Folder, Platform, Reply, binaries, skip};
use serde_json::{Value, json};

/// What all images have. The user's files are where AWS's base images have them.
const DOCKERFILE: &str = r#"
FROM scratch
ADD root.tar /
COPY lambda-entrypoint.sh /
COPY runtime/ /var/runtime/
COPY task/ /var/task/
ENV LAMBDA_TASK_ROOT=/var/task LAMBDA_RUNTIME_DIR=/var/runtime TZ=:/etc/localtime
WORKDIR /var/task
ENTRYPOINT ["/lambda-entrypoint.sh"]
"#;

/// Packages of PyPI for the Python of the platform's root filesystem.
const FOR_THE_IMAGE: [&str; 8] = [
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    "--platform=manylinux_2_34_x86_64",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux2014_x86_64",
    "--platform=any",
];

/// The binary's platform, which has the root filesystem of Node.js's image, too.
fn shared() -> &'static Platform {
    let _before_it_starts = *NODE_24;
    rekindle_e2e::shared()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

/// The folder of an image of the platform's root filesystem `root`, with the runtime that `bootstrap` starts, and the
/// image's handler.
fn image(name: &str, root: &str, handler: &str, bootstrap: Option<&str>) -> Option<Folder> {
    if Command::new("buildah").arg("--version").output().is_err() {
        skip("buildah is missing: run scripts/setup.sh test-packages");
        return None;
    }
    let settings = "memory = \"256MiB\"\ntimeout = \"10s\"\nboot_timeout = \"60s\"\nidle = \"60s\"\n";
    let config = format!("name = \"{name}\"\nimage = \".\"\ninterface = \"lambda\"\n{settings}");
    let dockerfile = format!("{DOCKERFILE}CMD [\"{handler}\"]\n");
    let folder = Folder::with_config(&config).file("Dockerfile", &dockerfile);
    let at = |name: &str| folder.path().join(name);
    for made in ["runtime", "task"] {
        fs::create_dir(at(made)).unwrap();
    }
    if let Some(bootstrap) = bootstrap {
        fs::write(
            at("runtime/bootstrap"),
            format!("#!/bin/sh\nexec {bootstrap} \"$_HANDLER\"\n"),
        )
        .unwrap();
        fs::set_permissions(at("runtime/bootstrap"), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let files = binaries::checkout().join("tests/functions/lambda-image");
    copy(&files.join("lambda-entrypoint.sh"), folder.path());
    // Links would be files of another context.
    fs::copy(binaries::runtimes().join(format!("{root}.tar")), at("root.tar")).unwrap();
    Some(folder)
}

/// The functions' environment, in an answer of Python's handler.
fn environment(function: &str) -> Value {
    invoke(shared(), function, r#"{"environment": true}"#).ok().json()
}

#[test]
fn an_image_with_awslambdaric_answers_as_under_the_emulator() {
    let start = Some("python3 -m awslambdaric");
    let Some(folder) = image("image-python", "python", "app.handler", start) else {
        return;
    };
    let of = Folder::sample("lambda-python", |text| text);
    let runtime = folder.path().join("runtime");
    if !install(&of.path().join("requirements.txt"), &runtime, &FOR_THE_IMAGE) {
        return skip("pip is missing, or PyPI has no awslambdaric for Python 3.11");
    }
    let task = folder.path().join("task");
    copy(&of.path().join("app.py"), &task);
    // A second handler, which tells where it runs.
    let told = "import os\n\ndef handler(event, context):\n    names = ('_HANDLER', 'LAMBDA_TASK_ROOT', 'TZ')\n    \
                return {'environment': [os.environ[name] for name in names], 'cwd': os.getcwd()}\n";
    fs::write(task.join("told.py"), told).unwrap();
    let dockerfile = folder.path().join("Dockerfile");
    let text = fs::read_to_string(&dockerfile).unwrap();
    fs::write(&dockerfile, text.replace("TZ=", "PYTHONPATH=/var/runtime TZ=")).unwrap();
    greets(shared(), &folder, "image-python", Some(1));

    let requirements = of.path().join("requirements.txt");
    python_is_alike(shared(), "image-python", &task, &requirements);

    // Another handler of the same image, as with `ImageConfig.Command` on AWS.
    let other = [("command", "[\"/lambda-entrypoint.sh\", \"told.handler\"]")];
    folder.set("image-told", &other).unwrap();
    has_a_snapshot(&shared().deploy(&folder));
    assert_eq!(
        environment("image-told"),
        json!({"environment": ["told.handler", "/var/task", ":/etc/localtime"], "cwd": "/var/task"})
    );
}

#[test]
fn an_image_with_aws_lambda_ric_answers_as_under_the_emulator() {
    let Some(of) = sample("node").filter(|_| *NODE_24) else {
        return skip("there is no Node.js 24: scripts/setup.sh says why");
    };
    let start = Some("node /var/runtime/node_modules/aws-lambda-ric/index.mjs");
    let Some(folder) = image("image-ric", "node24", "index.handler", start) else {
        return;
    };
    let packages = folder.path().join("runtime/node_modules");
    fs::create_dir(&packages).unwrap();
    copy(&of.path().join("node_modules/aws-lambda-ric"), &packages);
    copy(&of.path().join("index.mjs"), &folder.path().join("task"));
    greets(shared(), &folder, "image-ric", None);
    if let Some(emulated) = emulated(&of, "index.handler") {
        let events = [r#"{"name": "é\u0000"}"#, r#"{"raise": "why"}"#, "1", r#"{"exit": 3}"#];
        assert_alike(shared(), "image-ric", &emulated, &events);
    }
}

#[test]
fn an_image_with_a_program_of_go_answers_as_under_the_emulator() {
    let Some(of) = sample("go") else { return };
    // The program is the runtime, as in AWS's images for `provided`.
    let Some(folder) = image("image-go", "base", "handler", None) else {
        return;
    };
    copy(&of.path().join("bootstrap"), &folder.path().join("runtime"));
    greets(shared(), &folder, "image-go", None);
    if let Some(emulated) = emulated(&of, "handler") {
        let events = [
            r#"{"name": "é"}"#,
            r#"{"raise": "why"}"#,
            "no JSON",
            r#"{"stream": 3}"#,
            r#"{"exit": 3}"#,
        ];
        assert_alike(shared(), "image-go", &emulated, &events);
    }
}

#[test]
fn an_image_with_a_program_of_lambda_runtime_answers_as_under_the_emulator() {
    let Some(of) = sample("rust") else { return };
    let Some(folder) = image("image-rust", "base", "handler", None) else {
        return;
    };
    copy(&of.path().join("bootstrap"), &folder.path().join("runtime"));
    greets(shared(), &folder, "image-rust", Some(1));
    let streamed = shared().get("image-rust", "/?stream=3").ok();
    assert_eq!(streamed.text(), "0\n1\n2\n");
    if let Some(emulated) = emulated(&of, "handler") {
        let events = [
            r#"{"name": "é\u0000"}"#,
            r#"{"raise": "why"}"#,
            r#"{"panic": "no way on"}"#,
            "no JSON",
            r#"{"stream": 3}"#,
            r#"{"exit": 3}"#,
        ];
        assert_alike(shared(), "image-rust", &emulated, &events);
    }
}

/// The client's class, which starts the runtime.
const JAVA_CLIENT: &str = "com.amazonaws.services.lambda.runtime.api.client.AWSLambda";

/// Lays out the sample of Java as AWS's base images have it. The Java runtime is below `/var/lang`, and the client's
/// libraries are below `/var/runtime/lib`. The user's classes are in `/var/task`, and libraries of the user's in its
/// `lib`.
fn lay_out_java(of: &Path, folder: &Path) {
    copy(&of.join("jre"), &folder.join("lang"));
    let dockerfile = folder.join("Dockerfile");
    let text = fs::read_to_string(&dockerfile).unwrap();
    fs::write(
        &dockerfile,
        text.replace("COPY runtime/", "COPY lang/ /var/lang/\nCOPY runtime/"),
    )
    .unwrap();
    for libraries in ["runtime/lib", "task/lib"] {
        fs::create_dir(folder.join(libraries)).unwrap();
    }
    for jar in fs::read_dir(of.join("target/dependency")).unwrap() {
        let jar = jar.unwrap().path();
        let is_users = jar.file_name().unwrap().to_string_lossy().starts_with("org-crac");
        copy(&jar, &folder.join(if is_users { "task/lib" } else { "runtime/lib" }));
    }
    copy(&of.join("target/classes/sample"), &folder.join("task"));
    let counter = binaries::checkout().join("tests/functions/lambda-image/Counter.java");
    let mut compiling = Command::new("javac");
    compiling
        .args(["--release", "17", "-cp"])
        .arg(of.join("target/dependency/*"));
    compiling.arg("-d").arg(folder.join("task")).arg(counter);
    assert!(compiling.status().unwrap().success());
}

/// What the counter answers, in a copy of its own.
fn counted() -> (Reply, Value) {
    let answer = shared().fresh("restored", "image-counter", "/").ok();
    let body = answer.json();
    assert_eq!(body["request"], answer.header("x-request-id"));
    (answer, body)
}

#[test]
fn an_image_with_aws_s_java_client_answers_as_under_the_emulator() {
    let Some(of) = sample("java") else { return };
    let start = format!(
        "/var/lang/bin/java -XX:+UseSerialGC -Dorg.crac.Core.Compat=com.amazonaws.services.lambda.crac \
         -cp '/var/runtime/lib/*' {JAVA_CLIENT}"
    );
    let handler = "sample.Greeter::handleRequest";
    let Some(folder) = image("image-java", "base", handler, Some(&start)) else {
        return;
    };
    lay_out_java(of.path(), folder.path());
    greets(shared(), &folder, "image-java", Some(1));
    if let Some(emulated) = emulated(&of, handler) {
        assert_alike(shared(), "image-java", &emulated, &JAVA_EVENTS);
    }

    // The same image with an entry point as AWS tells it for images that are not its own, and with another handler.
    let libraries = "/var/runtime/lib/*:/var/task:/var/task/lib/*";
    let command = [
        "/var/lang/bin/java",
        "-cp",
        libraries,
        JAVA_CLIENT,
        "sample.Counter::handleRequest",
    ];
    let command = [("command", &*json!(command).to_string())];
    folder.set("image-counter", &command).unwrap();
    has_a_snapshot(&shared().deploy(&folder));
    let copies = [counted(), counted()];
    let [(first, a), (second, b)] = &copies;
    assert_ne!(first.instance(), second.instance());
    for told in [a, b] {
        assert_eq!((&told["begun"], &told["calls"]), (&a["begun"], &json!(1)), "{told}");
        assert_eq!(
            (&told["handler"], &told["folder"]),
            (&json!(""), &json!("/var/task")),
            "{told}"
        );
    }
    for own in ["id", "random"] {
        assert_ne!(a[own], b[own]);
    }
    let again = shared().get("image-counter", "/").ok();
    assert_eq!((again.start(), &again.json()["calls"]), ("warm", &json!(2)));
}
