//! Compiles the reaper: without a C library and without unwinding, so that it has one page of code and one of stack.

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
    for watched in ["src/program", "layout.ld", "build.rs"] {
        println!("cargo:rerun-if-changed={watched}");
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (out, here) = (variable("OUT_DIR"), variable("CARGO_MANIFEST_DIR"));
    let program = Path::new(&out).join("reaper");
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        // There is none for this processor.
        return fs::write(&program, "").unwrap_or_else(|e| panic!("write to {out}: {e}"));
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=bin", "--crate-name=reaper"]);
    rustc.args([
        "-Copt-level=s",
        "-Cpanic=abort",
        "-Cstrip=symbols",
        "-Crelocation-model=static",
    ]);
    rustc.args(["--target", &variable("TARGET")]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(LINK.map(|argument| format!("-Clink-arg={argument}")));
    rustc.arg(format!("-Clink-arg=-Wl,-T,{here}/layout.ld"));
    rustc.arg("-o").arg(&program).arg("src/program/main.rs");
    let status = rustc.status().unwrap_or_else(|e| panic!("run rustc: {e}"));
    assert!(status.success(), "rustc: {status}");
}
