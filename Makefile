# Each target sets up what it needs: `make test` works on a fresh clone.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup peers test check study bench picture clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@echo "setting up .venv"
	@$(PYTHON) -c 'import sys; sys.exit("mixerloop needs Python 3.11 or newer") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv .venv
	@$(PIP) -e ".[dev]"
	@touch $@

# What some tests need and a user may not: other people's gated delta rule, Weights & Biases.
peers: .venv/.peers

.venv/.peers: .venv/.ready
	@$(PIP) -e ".[peers,wandb]"
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
	@echo "Training and the study of trained models are still to come."
	@echo "This is what can be done before: the cost of each loop, data, and decoding from fresh weights."
	@echo
	@$(BIN)/mixerloop describe 15m
	@echo
	@$(BIN)/mixerloop describe 110m
	@echo
	@rm -rf runs/first-look && mkdir -p runs/first-look
	@$(BIN)/mixerloop data prepare stdlib --out runs/first-look/stdlib
	@$(BIN)/mixerloop init nano --tokenizer runs/first-look/stdlib/tokenizer.model --out runs/first-look/fresh
	@$(BIN)/mixerloop generate runs/first-look/fresh --prompt "import" --max-tokens 30
	@echo
	@$(BIN)/mixerloop describe 15m --picture runs/first-look/loops.svg --json > runs/first-look/cost.json
	@echo "done: the loops as a picture in runs/first-look/loops.svg, their cost in runs/first-look/cost.json"

bench: setup
	$(BIN)/python benchmarks/operator_memory.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/data.py

picture: setup
	$(BIN)/python docs/images/loops.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
