//! Compiles the server of Lambda's runtime interface as a static program, which runs in any root filesystem.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/program");
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=bin", "--crate-name=rekindle_lambda"]);
    rustc.args([
        "-Copt-level=s",
        "-Cpanic=abort",
        "-Cstrip=symbols",
        "-Ctarget-feature=+crt-static",
    ]);
    rustc.args(["--target", &variable("TARGET")]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(["-o", &format!("{}/lambda", variable("OUT_DIR")), "src/program/main.rs"]);
    let status = rustc.status().unwrap_or_else(|e| panic!("run rustc: {e}"));
    assert!(status.success(), "rustc: {status}");
}
