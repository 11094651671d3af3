# `make try` shows the product at work; `make test` runs everything the project holds itself to.
# Both make their own virtual environment in .venv and need only Python 3.11+ and make.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help try test lint bench clean

help:
	@echo "make try    install into .venv and see Choreo at work"
	@echo "make test   lint, types, import direction and the whole test suite"
	@echo "make bench  measure speed and memory against the targets"
	@echo "make clean  remove .venv and caches"

.venv/installed: pyproject.toml setup.py $(shell find src -name "*.[ch]")
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/installed-dev: pyproject.toml .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

try: .venv/installed
	@$(BIN)/choreo tour

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/check_imports.py
	@$(BIN)/python tools/count_lines.py

test: lint
	$(BIN)/python -m pytest -n auto

bench: .venv/installed-dev
	$(BIN)/python benchmarks/build_and_prove.py
	$(BIN)/python benchmarks/simulate.py --twin
	$(BIN)/python benchmarks/plan.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
