# Rekindle: set-up, build, tests. `make` alone lists the targets.
# `up`, tests and lints use a profile that compiles quickly (release), what is measured and packaged one that runs
# quickly (dist).

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

CARGO_TARGET_DIR ?= $(CURDIR)/target
FN_CACHE ?= /var/cache/rekindle
export CARGO_TARGET_DIR FN_CACHE
# One job more than there are processors, where these are few: one thread does the first half of a large crate.
ifndef CARGO_BUILD_JOBS
ifneq ($(filter 1 2 3 4,$(shell nproc)),)
export CARGO_BUILD_JOBS := $(shell expr $$(nproc) + 1)
endif
endif
# Other S3 servers for the store's tests, where scripts/install-s3-server.sh has put them.
S3_SERVERS := $(FN_CACHE)/s3-servers
ifneq ($(wildcard $(S3_SERVERS)/versitygw),)
export REKINDLE_VERSITYGW ?= $(S3_SERVERS)/versitygw
endif
ifneq ($(wildcard $(S3_SERVERS)/minio),)
export REKINDLE_MINIO ?= $(S3_SERVERS)/minio
endif
# The identity provider that tests sign in at.
export REKINDLE_OIDC ?= $(FN_CACHE)/oidc
# Queues for the tests of rekindle-events, where scripts/install-nats-server.sh and install-moto.sh have put them.
QUEUE_SERVERS := $(FN_CACHE)/queue-servers
ifneq ($(wildcard $(QUEUE_SERVERS)/nats-server),)
export REKINDLE_NATS_SERVER ?= $(QUEUE_SERVERS)/nats-server
endif
ifneq ($(wildcard $(QUEUE_SERVERS)/moto/bin/moto_server),)
export REKINDLE_MOTO_SERVER ?= $(QUEUE_SERVERS)/moto/bin/moto_server
endif

FN := $(CARGO_TARGET_DIR)/release/fn
DIST := $(CARGO_TARGET_DIR)/dist
BENCH := $(DIST)/rekindle-bench
TOOLS := $(FN_CACHE)/tools
DENY := $(TOOLS)/bin/cargo-deny
FUZZ := $(TOOLS)/bin/cargo-fuzz
MDBOOK := $(TOOLS)/bin/mdbook
CARGO_ARGS ?=
# For `cargo test` alone.
TEST_ARGS ?=
BENCH_ARGS ?=
LOAD_ARGS ?=
SCENARIOS ?=
DURATION ?= 30s

.PHONY: help up down build clean packages test-packages setup dist dist-setup package image image-test traces trace load
.PHONY: test test-rust test-criu test-functions test-packaging test-monitoring terraform-check terraform-validate fuzz
.PHONY: check fmt layers clippy doc docs docs-check shell deny advisories bench bench-all bench-compare

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# Only what it runs is built: S3, which machines that share objects need, where a whole build has compiled it. The
# runtimes' root filesystems are made meanwhile.
UP_FEATURES := $(if $(wildcard $(CARGO_TARGET_DIR)/release/librekindle_store_s3.rlib),,--no-default-features)
up: packages ## install what is missing, build, start the platform, and show a function's life
	@scripts/setup.sh runtimes & runtimes=$$!; trap 'kill $$runtimes' INT TERM; \
	cargo build --release --locked -p rekindle-cli -p rekindle-init $(UP_FEATURES) $(CARGO_ARGS); built=$$?; \
	wait $$runtimes && exit $$built
	@scripts/setup.sh criu
	@$(FN) up
	@$(FN) demo functions/samples/hello-python
	@echo "stop       make down"

down: ## stop the platform
	@if [ -x $(FN) ]; then $(FN) down; \
	elif [ -e "$${FN_RUN:-/run/rekindle}/platform.json" ]; then \
		echo "a platform may run (see $${FN_RUN:-/run/rekindle}/platform.json), but fn is not built:" \
			"'make build', then 'make down'" >&2; exit 1; \
	else echo "no platform runs"; fi

test: setup test-rust test-functions test-packaging test-monitoring ## run every test (as root)

check: fmt layers clippy doc docs-check shell terraform-check ## formatting, lints, documentation, scripts, licences
	@if [ -x $(DENY) ]; then $(MAKE) --no-print-directory deny; \
	else \
		echo "skipped: cargo-deny and its advisories: it is not installed; 'make deny' installs it (some minutes, once)"; \
	fi

bench: dist-setup ## measure booted, restored and warm, next to plain starts, containers and stock CRIU
	@scripts/install-peers.sh
	$(BENCH) $(BENCH_ARGS)

# Every language and size, cold restores, then each part by itself: some hours on a quiet machine; less with fewer of
# them named.
LANGUAGES ?= python,node,static
SIZES ?= 64,128,256,512
COLD ?= 30
PARTS ?= phases checkpoint sharing throughput sandboxes clones many slow-clients first versions pager codec idle \
	migration policy placement simulate
bench-all: ## the whole comparison, its plots drawn into docs/plots too, and each part's own benchmark
	$(MAKE) --no-print-directory bench \
		BENCH_ARGS='--languages $(LANGUAGES) --sizes $(SIZES) --cold $(COLD) --plots docs/plots $(BENCH_ARGS)'
	@for part in $(PARTS); do echo "=== $$part"; $(BENCH) $$part || exit 1; done

A ?=
B ?=
bench-compare: dist-setup ## compare two revisions in one run, or two records (A=main~5 B=HEAD)
	@scripts/bench-compare.sh "$(A)" "$(B)" $(BENCH_ARGS)

traces: ## start Jaeger on loopback, in memory, for what `fn up --traces` sends
	@jaeger=$$(scripts/install-jaeger.sh) && \
	echo "jaeger: OTLP at 127.0.0.1:4317, queries at http://127.0.0.1:16686; stop with ^C" && \
	exec "$$jaeger" --config file:$(CURDIR)/load-tests/jaeger.yaml

ID ?=
trace: ## print a trace from that Jaeger (ID=... for another than the newest)
	@if [ -x $(BENCH) ]; then $(BENCH) trace $(ID); \
	else echo "rekindle-bench is not built: 'make dist' first" >&2; exit 1; fi

load: dist-setup ## put a platform under k6's scenarios and write a report (SCENARIOS=steady,spike DURATION=1m)
	@k6=$$(scripts/install-k6.sh) && \
	{ scripts/install-jaeger.sh > /dev/null || echo "load: goes on without a trace store" >&2; } && \
	$(BENCH) load --k6 "$$k6" --duration $(DURATION) \
		$(if $(SCENARIOS),--scenarios $(SCENARIOS)) $(LOAD_ARGS)

# Stable Rust: coverage needs no sanitizer, and there is next to no unsafe code to sanitize.
TIME ?= 60
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
fuzz: $(FUZZ) ## give every parser damaged input for TIME=60 seconds each (TARGETS=page_map for one)
	@set -e; export PATH="$(TOOLS)/bin:$$PATH" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/fuzz; \
	for target in $(TARGETS); do mkdir -p fuzz/corpus/$$target; \
		cargo fuzz run --release --sanitizer none $$target fuzz/corpus/$$target fuzz/seeds/$$target \
			-- -max_total_time=$(TIME) -rss_limit_mb=1024 -timeout=10 -max_len=65536 -print_final_stats=1; done

$(FUZZ):
	cargo install --locked --root $(TOOLS) --version '^0.13' cargo-fuzz

package: dist-setup ## make Debian packages below target/package: rekindle, and the runtimes' root filesystems
	@packaging/build-deb.sh $(DIST) $(CARGO_TARGET_DIR)/package $(FN_CACHE)/runtimes

IMAGE := $(CARGO_TARGET_DIR)/package/rekindle$(addprefix -,$(SUITE)).raw
image: package
image: ## make a disk image for clouds, target/package/rekindle.raw (SIZE_MIB=4096, SUITE=bookworm for Debian 12)
	@SUITE=$(SUITE) packaging/image/build.sh $(CARGO_TARGET_DIR)/package/rekindle_*.deb $(IMAGE) $(SIZE_MIB)

image-test: $(IMAGE)
image-test: ## boot that image in a virtual machine and have it run the platform (ACCEL=tcg where there is no KVM)
	@scripts/install-s3-server.sh versitygw $(S3_SERVERS)
	@packaging/tests/boot.sh $(IMAGE) $(CARGO_TARGET_DIR)/package/rekindle-runtimes_*.deb $(S3_SERVERS)/versitygw

# Anew when the programs or what makes an image have changed.
$(IMAGE): $(DIST)/fn $(wildcard packaging/image/* packaging/systemd/* packaging/*.sh)
	@$(MAKE) image

$(DIST)/fn:
	@$(MAKE) dist

terraform-check: ## terraform/: formatting, linters where they are installed, assertions
	@scripts/install-terraform-tools.sh parser && scripts/terraform-check.sh

terraform-validate: ## terraform/ with the real AWS provider, built once (ten to thirty minutes), against moto
	@scripts/install-terraform-tools.sh provider && scripts/terraform-check.sh validate

build: test-packages ## build everything
	cargo build --release --locked --workspace $(CARGO_ARGS)

dist: test-packages ## build what is packaged and measured, fully optimised (takes longer)
	cargo build --profile dist --locked -p rekindle-cli -p rekindle-init -p rekindle-events -p rekindle-bench $(CARGO_ARGS)

clean: ## remove what was built (not the platform's data)
	cargo clean

packages test-packages:
	@scripts/setup.sh $@

setup: build
	@scripts/setup.sh host

dist-setup: dist
	@FN=$(DIST)/fn scripts/setup.sh host

CARGO_TEST = cargo test --release --locked --workspace --no-fail-fast $(CARGO_ARGS)
# With TEST_ARGS, what cargo makes of them; otherwise every test.
test-rust: setup
	@scripts/install-oidc-provider.sh $(REKINDLE_OIDC) || true
	$(if $(TEST_ARGS),$(CARGO_TEST) $(TEST_ARGS),scripts/run-tests.py $(CARGO_ARGS))

# Restores that go by restore programs otherwise.
CRIU_TESTS := restore differ clocks orphans unix_names state oracle
test-criu: setup ## the tests of restores, with CRIU for all of them
	FN_RESTORER=criu ONLY="$(CRIU_TESTS)" scripts/run-tests.py $(CARGO_ARGS)

test-functions: setup
	functions/tests/run.sh

test-packaging: setup
	PYTHONDONTWRITEBYTECODE=1 REKINDLE_BIN_DIR=$(CARGO_TARGET_DIR)/release python3 -m unittest discover -s packaging/tests

test-monitoring: ## Prometheus rules and the dashboard, against the metrics there are
	@scripts/install-promtool.sh > /dev/null || true
	python3 -m unittest discover -s ops/tests

fmt:
	cargo fmt --all --check
	@scripts/check-lines.py

clippy: test-packages
	cargo clippy --release --locked --workspace --all-targets $(CARGO_ARGS) -- -D warnings

doc: test-packages
	RUSTDOC=$(CURDIR)/scripts/rustdoc-check.sh RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace \
		--no-deps --document-private-items --quiet $(CARGO_ARGS)

docs: $(MDBOOK) docs-check ## build the book of docs/ into target/book
	$(MDBOOK) build docs --dest-dir $(CARGO_TARGET_DIR)/book
	@echo "book       $(CARGO_TARGET_DIR)/book/index.html"

$(MDBOOK):
	cargo install --locked --root $(TOOLS) --version '^0.5' mdbook

layers: ## no import cycle in any crate, and no import from a lower layer of the worker to a higher one
	@scripts/check-layers.py

docs-check: ## links, contents and language of every *.md, the commands they show, and the sentences of comments in *.rs
	@scripts/check-docs.py $(FN)

DENY_CHECKS ?= bans licenses sources
deny: $(DENY)
	$(DENY) --offline --locked check $(DENY_CHECKS)
	@$(MAKE) --no-print-directory advisories

# Their database comes from the network, and says something new every week: a machine that cannot have it fails nothing.
ADVISORIES_LIMIT ?= 120
advisories: $(DENY)
	@if said=$$(timeout $(ADVISORIES_LIMIT) $(DENY) --locked fetch db 2>&1); then \
		$(DENY) --locked check --disable-fetch advisories; \
	else \
		said=$$(grep . <<< "$${said:-no answer in $(ADVISORIES_LIMIT) s}" | tail -n 1); \
		echo "skipped: advisories: their database cannot be had: $$said"; \
	fi

$(DENY):
	cargo install --locked --root $(TOOLS) --version '^0.20' cargo-deny

shell: test-packages
	@git ls-files -z | xargs -0 grep -lZ --max-count=1 -E '^#!.*\b(ba)?sh$$' | xargs -0 shellcheck --severity=warning
