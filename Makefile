# `make demo` runs the main job, `make test` the tests; both set up what they need in .venv, without sudo.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python
OUT    := demo-output
# Python compiles torch's sources once, not at every start.
unexport PYTHONDONTWRITEBYTECODE
FUZZ   := documents units handshake multicast grpc
RUST   := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: setup demo test test-all bench lint format clean study

setup: $(VENV)/.installed

$(VENV)/.tools: pyproject.toml
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.88 or newer, https://rustup.rs"; exit 77; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; set PYTHON"; exit 77; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	$(UV) 'maturin>=1.9,<2' && $(UV) --requirements pyproject.toml --extra plot --extra torch --extra emulate --extra explore \
		--group test --group lint --group bench
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/maturin develop --quiet --release --locked --uv
	@touch $@

# Records real training steps of a real model on this machine, forecasts them on a cluster, draws what it says.
demo: setup
	@mkdir -p $(OUT)
	$(BIN)/paceline record --model resnet18 --batch 16 --warmup 1 --steps 4 -o $(OUT)/resnet18.json
	$(BIN)/paceline simulate $(OUT)/resnet18.json --samples-per-s 500 --workers 2,4,8,16,32 --bandwidth 10Gbps \
		--plot $(OUT)/resnet18.png
	$(BIN)/paceline simulate $(OUT)/resnet18.json --samples-per-s 500 --workers 8 --bandwidth 10Gbps --strategy ring \
		--bucket-size 25MB --timeline $(OUT)/resnet18-ring.json
	@echo "The forecast is for a device of 500 images/s, not for this CPU. Look at $(OUT)/resnet18.png, and open $(OUT)/resnet18-ring.json at https://ui.perfetto.dev"

test: setup
	cargo test --locked --quiet
	$(BIN)/python -m pytest -q -m 'not slow'

test-all: setup
	cargo test --locked --quiet
	PROPTEST_CASES=5000 cargo test --locked --quiet -p paceline-model -p paceline-schedule
	cargo run --locked --quiet -p paceline-protobuf -- --check
	@$(UV) --requirements pyproject.toml --extra tensorflow --group graphs || echo "skipped: TensorFlow cannot be installed here"
	@$(UV) --requirements pyproject.toml --extra ray || echo "skipped: Ray cannot be installed here"
	$(BIN)/python -m pytest -q
	@if command -v cargo-fuzz >/dev/null && cargo +nightly --version >/dev/null 2>&1; then \
		cd fuzz && for target in $(FUZZ); do cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; done; \
	else echo "skipped: fuzzing needs a nightly toolchain and cargo-fuzz"; fi

bench: setup
	cargo bench --locked -p paceline-benches
	$(BIN)/python benches/processes.py
	$(BIN)/python benches/peers/run.py
	$(BIN)/python benches/horovod/run.py
	$(BIN)/python benches/coordinators/run.py

study: setup
	$(BIN)/paceline study network-operator --plots $(OUT)/network-operator

lint: setup
	cargo fmt --check
	cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format:
	cargo fmt
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf target $(VENV) $(OUT)
