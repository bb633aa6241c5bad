# Everything a newcomer needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test test-slow lint bench clean install

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

test: lint
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow" tests/acceptance tests/integration tests/contract tests/unit

test-slow: $(STAMP)
	$(BIN)/pytest -m slow --timeout 900 tests/unit tests/contract tests/integration tests/acceptance

bench: $(STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
