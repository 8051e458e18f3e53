#!/bin/sh
# rustdoc that checks documentation and writes no pages, as cargo's RUSTDOC: of 147 s for the workspace, pages take 100.
# As there are no pages, cargo checks all of it each time. `cargo doc --open` makes pages.
# The option is unstable, so this names the compiler's bootstrap variable; for rustdoc alone, as crates' builds read it.
RUSTC_BOOTSTRAP=1 exec rustdoc -Z unstable-options --check "$@"
