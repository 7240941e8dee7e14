# Everything a newcomer, a developer and CI need. `make demo` and `make test` install on their own.
PYTHON ?= python3
VENV := .venv
# Processes that run the tests.
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pip only: constraints.txt pins torch to a CPU build, which spares gigabytes of CUDA packages.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all check bench install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/contextwise demo

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow' --numprocesses $(WORKERS) --dist loadfile

test-all: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check --no-cache .  # its cache does not know that a module of ours is new
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist src/*.egg-info
