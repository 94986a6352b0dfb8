# Everything that people, pre-commit and continuous integration do, by one name each.

PYTHON ?= python3
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCK   := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --quiet \
          --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header

export PATH := $(BIN):$(PATH)

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name 'Cargo.toml')

.DEFAULT_GOAL := help
.PHONY: help setup sweep test test-rust test-python test-slow conformance lint format types docs \
        readme rustdoc bench wheel lock clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "%-14s%s\n", $$1, $$2}'

sweep: $(VENV)/built  ## Build, then find the best layout of a 70B-class model on 1,024 GPUs
	planner sweep --gpus 1024

setup: $(VENV)/dev $(VENV)/built  ## Build for development: .venv with every tool and the extension

test: test-rust test-python  ## Build, then run all tests

test-rust:  ## Rust unit, property and documentation tests
	cargo test --workspace --locked --quiet

test-python: setup  ## Python tests, documentation and examples included
	pytest -q

test-slow: setup  ## Python tests that take minutes
	HYPOTHESIS_PROFILE=slow pytest -q -m slow

conformance: setup  ## Exported configurations, read by the frameworks themselves
	$(PIP) torch==2.13.0 setuptools==84.2.1 wheel==0.48.0
	DS_BUILD_OPS=0 $(PIP) --no-deps --no-build-isolation -r conformance/requirements-py311.txt
	pytest -q -m conformance tests/conformance

lint: $(VENV)/dev  ## Formatting and lints of both languages, without changing a file
	ruff format --check .
	ruff check .
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

format: $(VENV)/dev  ## Format both languages, and mend what the linters can
	ruff check --fix .
	ruff format .
	cargo fmt

types: setup  ## Type-check, and hold the stubs to the compiled core
	mypy
	python -m mypy.stubtest --allowlist tests/stubtest-allowlist.txt meshplan._core

docs: $(VENV)/dev  ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

readme: setup  ## Renew the outputs that README.md shows
	python tests/refresh_readme.py

rustdoc:  ## Build the documentation of the Rust crates; warnings are errors
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

bench:  ## Run the benchmarks (benches/README.md tells how to read them)
	cargo bench --package planner-benches --locked

wheel: $(VENV)/run  ## Build an abi3 wheel into dist/
	maturin build --release --locked --out dist

lock: $(VENV)/dev  ## Renew the lock files of Python packages
	$(LOCK) --extra dev --extra plot --extra calibrate --output-file requirements/dev.txt
	printf 'maturin\n' | $(LOCK) - --constraint requirements/dev.txt --output-file requirements/run.txt

clean:  ## Remove what was built; the virtual environment too
	rm -rf $(VENV) target dist site python/meshplan/_core.abi3.so

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run: requirements/run.txt | $(VENV)/bin/python
	$(PIP) --require-hashes -r $<
	touch $@

$(VENV)/dev: requirements/dev.txt $(VENV)/run
	$(PIP) --require-hashes -r $<
	touch $@

$(VENV)/built: pyproject.toml $(RUST_SOURCES) $(VENV)/run
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@
