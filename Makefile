# Everything a newcomer needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test test-home test-gate test-slow test-slow-a test-slow-b sim lint bench clean install

install: $(STAMP)

$(STAMP): pyproject.toml
	@echo 'Setting up $(VENV): a minute or two, torch is large …'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/cordon demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# Two processes of tests at a time: most of them wait for servers.
BOTH := $(MAKE) --no-print-directory -j2
FAST := $(BIN)/pytest -m 'not slow'
SLOW := $(BIN)/pytest -m slow --timeout 900

test: lint
	$(BOTH) test-home test-gate

test-home: $(STAMP)
	$(FAST) tests/acceptance tests/unit tests/contract tests/simulation tests/integration/attacks tests/integration/test_cli.py

test-gate: $(STAMP)
	$(FAST) tests/integration --ignore tests/integration/attacks --ignore tests/integration/test_cli.py

test-slow: $(STAMP)
	$(BOTH) test-slow-a test-slow-b

test-slow-a: $(STAMP)
	$(SLOW) tests/acceptance tests/integration/test_[a-e]*.py

test-slow-b: $(STAMP)
	$(SLOW) tests/integration/test_[f-z]*.py tests/integration/attacks tests/contract tests/unit tests/simulation

# The whole gatekeeper under seeded faults: `make sim SEEDS=200`; `make sim SEED=123` repeats one, told step by step.
SEEDS ?= 50
sim: $(STAMP)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

bench: $(STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
