# Everything a newcomer needs: `make demo` and `make test` set up their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests of everything that a dependency can break: the whole way through the library, with files, tables and pages.
CORE := tests/estimator/test_estimator.py tests/estimator/test_sklearn.py tests/storage/test_model_file.py tests/cli/test_tables.py tests/cli/test_commands.py \
	tests/inference/test_restarts.py tests/estimator/test_nuts_estimator.py tests/inference/test_stochastic.py tests/plots/test_plots.py tests/cli/test_parquet.py \
	tests/house/test_floors.py tests/house/test_package.py tests/estimator/test_reproducible.py tests/estimator/test_compiling.py

.PHONY: demo test test-long test-lowest test-newest test-package test-endurance test-hostile test-numerics test-fuzz check install format paper results benchmark benchmark-page docs clean

demo: $(VENV)/.installed
	$(BIN)/lvmogp demo --out out

test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long

# What docs/trust-*.md say of a thousand hostile data sets, of arithmetic of fifty digits and of damaged files.
MEASURED = -n auto -o junit_family=xunit1 --junitxml
test-hostile: $(VENV)/.installed-dev
	LVMOGP_MANY=1000 $(BIN)/python -m pytest tests/estimator/test_hostile.py $(MEASURED) out/hostile.xml $(ARGUMENTS)
	$(BIN)/python -m benchmarks.trust hostile

test-numerics: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/model/test_numerics.py -m long $(MEASURED) out/numerics.xml $(ARGUMENTS)
	$(BIN)/python -m benchmarks.trust numerics

test-fuzz: $(VENV)/.installed-dev
	LVMOGP_MANY=1000 $(BIN)/python -m pytest tests/storage/test_fuzz.py $(MEASURED) out/fuzz.xml $(ARGUMENTS)
	$(BIN)/python -m benchmarks.trust fuzz

# The lowest versions that pyproject.toml allows, and the newest there are; PYTHON=python3.13 for another Python.
# Old packages use what newer ones below them have deprecated; what we use ourselves is warned of by the newest.
test-lowest: RESOLUTION := lowest-direct
test-lowest: WARNINGS := -W ignore::DeprecationWarning
test-newest: RESOLUTION := highest
test-lowest test-newest:
	$(PYTHON) -m venv --clear out/$@
	out/$@/bin/pip install --quiet uv
	out/$@/bin/uv pip install --quiet --python out/$@/bin/python --resolution $(RESOLUTION) --editable '.[dev]'
	out/$@/bin/uv pip freeze --quiet --python out/$@/bin/python | tee out/$@.txt
	out/$@/bin/python -m pytest -n 2 --dist loadfile $(WARNINGS) $(CORE)

# The source archive, and the wheel built from it; the wheel is installed where nothing else is, used there as it is, and
# then tested with the tests of the archive.
test-package:
	rm -rf dist out/$@ out/$@-build out/$@-tests
	$(PYTHON) -m venv out/$@-build
	out/$@-build/bin/pip install --quiet build
	out/$@-build/bin/python -m build --outdir dist
	mkdir -p out/$@-tests
	tar -xzf dist/lvmogp-*.tar.gz --strip-components 1 -C out/$@-tests
	rm -r out/$@-tests/src
	$(PYTHON) -m venv out/$@
	out/$@/bin/pip install --quiet dist/*.whl
	out/$@/bin/pip check
	cd out/$@-tests/docs/data && ../../../$@/bin/lvmogp fit braking.csv --output distance --condition tyre --model brakes.lvmogp
	cd out/$@-tests/docs/data && ../../../$@/bin/lvmogp report brakes.lvmogp -o brakes.html
	out/$@/bin/pip install --quiet "$$(ls dist/*.whl)[dev]"
	cd out/$@-tests && LVMOGP_WHEEL="$$(ls ../../dist/*.whl)" ../$@/bin/python -m pytest -n 2 --dist loadfile $(CORE)

# Hundreds of fits and thousands of predictions in one process; about half an hour.
test-endurance: $(VENV)/.installed
	$(BIN)/python benchmarks/endurance.py $(ARGUMENTS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir out/site

# The paper's experiments: make paper ARGUMENTS="servo --quick".
paper: $(VENV)/.installed
	$(BIN)/python -m paper $(ARGUMENTS)

results: $(VENV)/.installed
	$(BIN)/python -m paper.page

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
