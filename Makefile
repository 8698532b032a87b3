# `make demo` runs the main job, `make test` the everyday tests; both set up what they need in .venv, without sudo.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv pip install --python $(BIN)/python
OUT    := demo-output
DIST   := dist
SAY    := @printf '\n==> %s\n'
# Python compiles torch's sources once, not at every start.
unexport PYTHONDONTWRITEBYTECODE
# Maturin warns of any build backend but its own; ours checks for Rust and calls it.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
FUZZ   := documents units handshake multicast grpc
RUST   := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: setup notices conformance gpu kernels demo test test-rust test-python test-process test-all golden golden-check settings test-simulation simulate-runtime simulate-elastic chaos loom bench lint format clean study wheels docs

setup: $(VENV)/.installed

# What the demo and the tests need; linters and benchmarks bring their own when they are run. On Linux plain torch brings CUDA's
# libraries, 4 of its 5 GB; UV_TORCH_BACKEND=cpu in the environment leaves them out where download.pytorch.org can be reached.
$(VENV)/.tools: pyproject.toml
	@$(PYTHON) scripts/build/checked_maturin.py
	$(SAY) "Installing Python packages into $(VENV): torch and what it needs are 5 GB. Takes 1 to 4 minutes; seconds from uv's cache."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	@$(UV) --requirements pyproject.toml --extra plot --extra torch --extra emulate --extra explore --extra chakra --extra ucx --group test 'maturin>=1.13,<2'
	@touch $@

# Not quiet: cargo says what it compiles.
$(VENV)/.installed: $(VENV)/.tools $(RUST)
	$(SAY) "Compiling the Rust core, some 120 crates. Takes 2 to 4 minutes on two cores the first time, half of it for the last crate, _core."
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/maturin develop --release --locked --uv
	@touch $@

# What `make test` would compile first; the demo does without.
$(VENV)/.tests: $(VENV)/.tools $(RUST)
	$(SAY) "Compiling the Rust tests. Takes 2 to 4 minutes on two cores the first time."
	@cargo test --locked --quiet --no-run
	@touch $@

# pytest rewrites the tests' assertions, and hypothesis reads constants; else each of its workers would do so, all at once.
$(VENV)/.collected: $(VENV)/.installed
	$(SAY) "Compiling the Python tests. Takes 20 seconds the first time."
	@$(PYTEST) --collect-only -qq >/dev/null || true  # make test says why
	@touch $@

$(VENV)/.lint: $(VENV)/.tools
	@$(UV) --quiet --requirements pyproject.toml --group lint
	@touch $@

# Records real training steps of a real model on this machine, forecasts them on a cluster, draws what it says.
demo: setup
	@mkdir -p $(OUT)
	$(SAY) "1/3 Recording four training steps of ResNet-18 on this CPU. Takes about a minute."
	$(BIN)/paceline record --model resnet18 --batch 16 --warmup 1 --steps 4 -o $(OUT)/resnet18.json
	$(SAY) "2/3 Forecasting them on 2 to 32 devices of 500 images/s at 10 Gbit/s, with each strategy. Takes seconds."
	$(BIN)/paceline simulate $(OUT)/resnet18.json --samples-per-s 500 --workers 2,4,8,16,32 --bandwidth 10Gbps \
		--plot $(OUT)/resnet18.png
	$(SAY) "3/3 Forecasting one strategy with buckets of 25 MB and writing its timeline. Takes a second."
	$(BIN)/paceline simulate $(OUT)/resnet18.json --samples-per-s 500 --workers 8 --bandwidth 10Gbps --strategy ring \
		--bucket-size 25MB --timeline $(OUT)/resnet18-ring.json
	$(SAY) "Done. The forecast is for a device of 500 images/s, not for this CPU."
	@echo "Look at $(OUT)/resnet18.png, and open $(OUT)/resnet18-ring.json at https://ui.perfetto.dev"

# A test is in one of three tiers, by its marker (pyproject.toml): everyday, minutes (neither marker); `process`, ranks of its own;
# `slow`, everything else. CI runs the first two.
PYTEST   := $(BIN)/python -m pytest -q
# Each worker imports torch.
PARALLEL := --numprocesses auto --maxprocesses 3 --dist loadgroup

# Rust's and Python's at once: both have tests that wait, for limits and for each other.
test: setup $(VENV)/.tests $(VENV)/.collected
	@begin=$$(date +%s); $(MAKE) --no-print-directory -j2 test-rust test-python && \
		echo "make test: everything passed in $$(($$(date +%s) - begin)) s"

test-rust: $(VENV)/.tests
	@mkdir -p target
	@PROPTEST_CASES=25 RUST_TEST_THREADS=4 cargo test --locked --quiet >target/test-rust.log 2>&1 || { cat target/test-rust.log; exit 1; }
	@echo "cargo test: $$(awk '/^test result/ { n += $$4 } END { print n }' target/test-rust.log) passed"

test-python: setup
	$(PYTEST) $(PARALLEL) -m 'not process and not slow'

# Most run beside each other, and what fails there once more alone: a limit of seconds may have passed because the others had
# the cores. Those that compare times, or count what the whole machine does, have it to themselves.
test-process: setup
	$(PYTEST) --numprocesses 3 --dist worksteal -m 'process and not timed and not slow' || \
		$(PYTEST) --last-failed --last-failed-no-failures none -m 'process and not timed and not slow'
	$(PYTEST) -m 'process and timed and not slow'

test-all: setup
	PROPTEST_CASES=1000 PACELINE_TEST_ALL=1 cargo test --locked --quiet
	PROPTEST_CASES=5000 PACELINE_TEST_ALL=1 cargo test --locked --quiet -p paceline-model -p paceline-schedule
	cargo run --locked --quiet -p paceline-protobuf -- --check
	$(MAKE) loom
	@$(UV) --quiet --requirements pyproject.toml --extra tensorflow --extra jax --group graphs || echo "skipped: TensorFlow or JAX cannot be installed here"
	@$(UV) --quiet --requirements pyproject.toml --group docs || echo "skipped: the notebooks' kernel cannot be installed here"
	@$(UV) --quiet --requirements pyproject.toml --extra ray || echo "skipped: Ray cannot be installed here"
	@$(UV) --quiet --requirements pyproject.toml --group trainers || echo "skipped: the trainers cannot be installed here"
	@DS_BUILD_OPS=0 $(UV) --quiet --no-build-isolation 'deepspeed>=0.18,<1' || echo "skipped: DeepSpeed cannot be installed here"
	$(PYTEST) $(PARALLEL) -m 'not process' --hypothesis-profile full
	$(PYTEST) --numprocesses 3 --dist worksteal -m 'process and not timed' --hypothesis-profile full
	$(PYTEST) -m 'process and timed' --hypothesis-profile full
	@if command -v cargo-fuzz >/dev/null && cargo +nightly --version >/dev/null 2>&1; then \
		cd fuzz && for target in $(FUZZ); do cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; done; \
	else echo "skipped: fuzzing needs a nightly toolchain and cargo-fuzz"; fi

# Numbers of some 700 outputs against tests/golden, and those outputs anew (CONTRIBUTING.md). ONLY="llama-3-8b zero3": those that
# have these words; OPTIONS: --words, too, --all, also what takes minutes, --full, all differences, --seconds, the slowest.
golden-check: setup
	@cd tests && ../$(BIN)/python -m golden check $(ONLY) $(OPTIONS)

# What is generated from the table of settings: types, defaults of the core, docs/reference/settings.md.
settings: setup
	@$(BIN)/python -m paceline.settings.generate

golden: setup
	@cd tests && ../$(BIN)/python -m golden write $(ONLY) $(OPTIONS)

# The peers' own tests: torch's from its wheel; Horovod's from a source tree of v0.28.1, if HOROVOD_SOURCE names one.
# SUITES=trainers: our tests of trainers, with the newest of each in .venv-trainers (gigabytes).
conformance: setup $(VENV)/.conformance
	cd tests && ../$(BIN)/python -m conformance $(SUITES)

$(VENV)/.conformance: $(VENV)/.tools
	@$(UV) --quiet --requirements pyproject.toml --group conformance
	@touch $@

# Searches schedules of the live runtime in a virtual world, with new seeds:
# docs/explanation/simulation-of-the-runtime.md.
SECONDS ?= 60
SIMULATION := --release --locked --quiet --manifest-path simulation/Cargo.toml
simulate-runtime:
	cargo run $(SIMULATION) -- search $(SECONDS) --first $$(date +%s)000000

# Scenarios that have failed before, every schedule of a small world, and reintroduced bugs that must be found.
test-simulation:
	cargo test $(SIMULATION)

# Shared memory between ranks in every order of accesses that the memory model permits.
loom:
	RUSTFLAGS="--cfg loom" LOOM_MAX_BRANCHES=10000 cargo test --locked --quiet --target-dir target/loom -p paceline-transport --lib shm::model

# Elastic jobs in a virtual world, on new seeds: schedules a second, states reached, violations. SEED repeats a search.
simulate-elastic: setup
	cd tests && ../$(BIN)/python -m elastic_simulation --systematic
	cd tests && ../$(BIN)/python -m elastic_simulation --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) --json ../elastic-simulation.json

# What goes wrong in the real world, at random: counts, and a JSON file of results. For every night, not for every change.
MINUTES ?= 5
chaos: setup
	cd tests && ../$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --json ../chaos.json

bench: setup
	cargo bench --locked -p paceline-benches
	$(BIN)/python benches/processes.py
	$(BIN)/python benches/peers/run.py
	$(BIN)/paceline bench --model resnet18 --image-size 64 --batch-size 16 --engine ddp-gloo,paceline -np 2

# On a machine with a CUDA device: results against the CPU's, training, and times beside NCCL and gloo; elsewhere
# one line, and 77, for which make itself exits with 2.
gpu: setup
	@$(BIN)/python benches/gpu/run.py --json gpu.json

# The PTX of the CUDA kernels, which is checked in. Needs no device.
kernels: $(VENV)/.tools
	@$(UV) --quiet --requirements pyproject.toml --group kernels
	$(BIN)/python crates/cuda/kernels/build.py

study: setup
	$(BIN)/paceline study network-operator --plots $(OUT)/network-operator

# The documentation site, without the network; with PACELINE_DOCS_ONLINE=1 it links to Python's, numpy's and torch's.
docs: setup settings
	$(UV) --quiet --requirements pyproject.toml --group docs
	$(BIN)/sphinx-build -W --keep-going -q -j auto -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# After a change of Cargo.lock or of the version: what a wheel says of the crates in it.
notices:
	$(PYTHON) scripts/third_party.py

lint: setup $(VENV)/.lint
	cargo fmt --check
	cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	cargo fmt --check --manifest-path simulation/Cargo.toml
	cargo clippy --locked --quiet --manifest-path simulation/Cargo.toml --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $$(git ls-files)
	$(BIN)/mypy

format: $(VENV)/.lint
	cargo fmt
	cargo fmt --manifest-path simulation/Cargo.toml
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One wheel for all Pythons from 3.11 and glibc from 2.17 on, for each architecture, and the source distribution: into dist/.
# zig links against an old glibc and is the C compiler of the other architecture. scripts/try_wheel.py installs and tries them.
# The same commit, in any folder and at any time, gives the same wheel, byte for byte: times are the commit's, and paths are replaced.
ARCHITECTURES ?= x86_64 aarch64
WHEELS        := .venv-wheels
$(WHEELS)/.installed: Makefile
	@$(PYTHON) -m venv $(WHEELS)
	@$(WHEELS)/bin/python -m pip install --quiet --disable-pip-version-check 'maturin>=1.13,<2' 'ziglang>=0.13,<0.18' \
		'auditwheel>=6.2,<7' 'abi3audit>=0.0.20'
	@touch $@

CARGO_HOME ?= $(HOME)/.cargo
wheels: export PATH := $(CURDIR)/$(WHEELS)/bin:$(PATH)
wheels: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
wheels: export RUSTFLAGS := $(foreach map,$(CARGO_HOME)=/cargo $(CURDIR)=/paceline,--remap-path-prefix=$(map))
wheels: export CFLAGS := -ffile-prefix-map=$(CARGO_HOME)=/cargo
wheels: $(WHEELS)/.installed
	rm -rf $(DIST)
	$(PYTHON) scripts/third_party.py --check
	maturin sdist --out $(DIST)
	@for architecture in $(ARCHITECTURES); do \
		target=$$architecture-unknown-linux-gnu; \
		test -d "$$(rustc --print target-libdir --target $$target)" || rustup target add $$target || \
			{ echo "skipped $$architecture: Rust has no standard library for it here; try: rustup target add $$target"; continue; }; \
		printf '\n==> %s\n' "Compiling for $$architecture. Takes 3 to 6 minutes on two cores the first time."; \
		maturin build --release --locked --zig --compatibility manylinux2014 --target $$target --out $(DIST) || exit 1; \
	done
	@for wheel in $(DIST)/*.whl; do auditwheel show $$wheel && abi3audit --strict --verbose $$wheel || exit 1; done
	$(PYTHON) scripts/check_wheels.py $(DIST)

clean:
	rm -rf target $(VENV) $(WHEELS) .venv-trainers $(OUT) $(DIST) docs/_build
