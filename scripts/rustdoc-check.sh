#!/bin/sh
# rustdoc that checks documentation and writes no pages, as cargo's RUSTDOC: of 147 s for the workspace, pages take 100.
# The option is unstable, so this names the compiler's bootstrap variable; for rustdoc alone, as crates' builds read it.
RUSTC_BOOTSTRAP=1 exec rustdoc -Z unstable-options --check "$@"
