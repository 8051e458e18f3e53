//! Links the hollow process without a C library, at the start of its window.
fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/window.ld");
    println!("cargo:rerun-if-changed={script}");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{script}");
}
