# Each target sets up what it needs: `make test` works on a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup peers test check study bench picture clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/mixerloop/ops/native/*)
	@echo "setting up .venv"
	@$(PYTHON) -c 'import sys; sys.exit("mixerloop needs Python 3.11 or newer") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv .venv
	@$(PIP) -e ".[dev]"
	@touch $@

# What some tests need and a user may not: other people's gated delta rule, Weights & Biases, Ray.
peers: .venv/.peers

.venv/.peers: .venv/.ready
	@$(PIP) -e ".[peers,wandb,ray]"
	@touch $@

test: setup
	$(BIN)/python -m pytest -n auto

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

study: setup
	@echo "The study with its report is still to come. This is what can be measured before:"
	@echo "the cost of each loop, and what looping the mixer buys one small layer."
	@echo
	@$(BIN)/mixerloop describe 15m
	@echo
	@$(BIN)/mixerloop describe 110m
	@echo
	@rm -rf runs/first-look && mkdir -p runs/first-look
	@$(BIN)/mixerloop data prepare hops --out runs/first-look/hops
	@for loop in no_loop mixer_loop; do \
		$(BIN)/mixerloop train configs/nano-hops-$$loop.toml --data.path runs/first-look/hops \
			--train.steps 600 --out runs/first-look/$$loop && \
		$(BIN)/mixerloop evaluate hops runs/first-look/$$loop || exit 1; \
	done
	@echo
	@$(BIN)/mixerloop runs runs/first-look
	@$(BIN)/mixerloop describe 15m --picture runs/first-look/loops.svg --json > runs/first-look/cost.json
	@echo "done: two runs, the loops as a picture and their cost in runs/first-look"

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

picture: setup
	$(BIN)/python docs/images/loops.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
