# `make try` shows the product at work; `make test` runs everything the project holds itself to.
# Both make their own virtual environment in .venv and need only Python 3.11+ and make.

PYTHON ?= python3
BIN := .venv/bin
# Four for each core: many tests wait for a process or a deadline rather than compute. The quick ones do not.
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
WORKERS := $(shell echo $$((4 * $(CORES))))
# Without build isolation: numpy and setuptools are there already, and need not be fetched twice.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-build-isolation
BUILT_FROM := pyproject.toml setup.py $(shell find src -name '*.[ch]')
BUILD_REQUIRES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
NEW_ENOUGH := import sys; sys.exit("Choreo needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another, as in make \
PYTHON=python3.11 $(MAKECMDGOALS)" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)

.PHONY: help try test test-quick lint lint-quick docs bench clean

help:
	@echo "make try         install into .venv and see Choreo at work"
	@echo "make test        lint, types, import direction and the whole test suite"
	@echo "make test-quick  lint, import direction and some tests of every folder, half a minute"
	@echo "make docs        the documents and the Python reference as pages, in build/docs"
	@echo "make bench       measure speed and memory against the targets"
	@echo "make clean       remove .venv, caches and what was built"

.venv/ready:
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	@echo "making a virtual environment in .venv ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -c '$(BUILD_REQUIRES)' > .venv/build-requires.txt
	@echo "installing what Choreo is built with: numpy, setuptools ..."
	@$(PIP) -r .venv/build-requires.txt
	@touch $@

.venv/installed: $(BUILT_FROM) | .venv/ready
	@echo "installing Choreo and what it needs, compiling its loops in C ..."
	@$(PIP) -e .
	@touch $@

# The tools with Choreo in one go, or its loops would be compiled twice.
.venv/installed-dev: $(BUILT_FROM) | .venv/ready
	@echo "installing Choreo, its tests' tools and what both need, compiling its loops in C ..."
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/installed

try: .venv/installed
	@$(BIN)/choreo tour

lint-quick: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_imports.py

lint: lint-quick
	$(BIN)/mypy
	@$(BIN)/python tools/count_lines.py

# mypy uses one core, so it runs beside the tests; what it found is told after them.
test: lint-quick
	@echo "$(BIN)/mypy beside $(BIN)/python -m pytest --workers $(WORKERS)"
	@$(BIN)/mypy > .venv/types.txt 2>&1 & checking=$$!; failed=0; \
	$(BIN)/python -m pytest --workers $(WORKERS) || failed=$$?; \
	wait $$checking || failed=1; \
	cat .venv/types.txt; \
	exit $$failed
	@$(BIN)/python tools/count_lines.py

test-quick: lint-quick
	$(BIN)/python -m pytest --workers $(CORES) --quick

.venv/installed-docs: pyproject.toml .venv/installed
	@echo "installing Sphinx ..."
	@$(PIP) -e '.[docs]'
	@touch $@ .venv/installed

docs: .venv/installed-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "open build/docs/index.html"

bench: .venv/installed-dev
	$(BIN)/python benchmarks/build_and_prove.py
	$(BIN)/python benchmarks/simulate.py --twin
	$(BIN)/python benchmarks/plan.py

clean:
	rm -rf docs/reference/python .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
