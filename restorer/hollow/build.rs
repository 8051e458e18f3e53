//! Compiles the hollow process: without a C library, without unwinding, linked at the start of its window.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const LINK: [&str; 6] = [
    "-nostartfiles",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
];

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = variable("OUT_DIR");
    let here = variable("CARGO_MANIFEST_DIR");
    let format = format!("{here}/../program/src");
    for watched in ["src/program", "window.ld", "build.rs", &format] {
        println!("cargo:rerun-if-changed={watched}");
    }
    let program = Path::new(&out).join("hollow");
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        // There is none for this processor.
        return fs::write(program, "").unwrap_or_else(|e| panic!("write to {out}: {e}"));
    }
    let rustc = |source: &str, name: &str| {
        let mut command = Command::new(variable("RUSTC"));
        command.args([
            "--edition=2024",
            "-Copt-level=2",
            "-Cpanic=abort",
            "--target",
            &variable("TARGET"),
        ]);
        command.args(["--crate-name", name, "--out-dir", &out, source]);
        if let Ok(linker) = env::var("RUSTC_LINKER") {
            command.arg(format!("-Clinker={linker}"));
        }
        command
    };
    let run = |mut command: Command| {
        let status = command.status().unwrap_or_else(|e| panic!("run rustc: {e}"));
        assert!(status.success(), "rustc: {status}");
    };
    let mut library = rustc(&format!("{format}/lib.rs"), "rekindle_restore_program");
    library.arg("--crate-type=rlib");
    run(library);
    let mut hollow = rustc("src/program/main.rs", "hollow");
    hollow.args(["--crate-type=bin", "-Crelocation-model=static"]);
    hollow.arg(format!(
        "--extern=rekindle_restore_program={out}/librekindle_restore_program.rlib"
    ));
    hollow.args(LINK.map(|argument| format!("-Clink-arg={argument}")));
    hollow.arg(format!("-Clink-arg=-Wl,-T,{here}/window.ld"));
    run(hollow);
}
