# Everything a newcomer needs: `make demo` and `make test` set up their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long test-hostile test-fuzz check install format results benchmark benchmark-page docs clean

demo: $(VENV)/.installed
	$(BIN)/lvmogp demo --out out

test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long

test-hostile: $(VENV)/.installed-dev
	$(BIN)/python tests/run_hostile.py $(ARGUMENTS)

test-fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzzing.py --variants 1000

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir out/site

results: $(VENV)/.installed
	$(BIN)/python -m lvmogp.experiments.page

benchmark: $(VENV)/.installed
	$(BIN)/python -m benchmarks.suite $(ARGUMENTS)

benchmark-page: $(VENV)/.installed
	$(BIN)/python -m benchmarks.suite.page

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev,docs]'
	$(BIN)/pip install --quiet --editable '.[rivals]' || echo "GPy could not be installed; its comparison is skipped"
	touch $@

clean:
	rm -rf $(VENV) out dist
