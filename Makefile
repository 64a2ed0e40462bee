# Every target makes its own virtual environment in .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= results/figure1
KERNEL := $(wildcard src/fedscaffold/engines/native/*.[ch] src/fedscaffold/engines/native/*.cpp)

# Tests start many processes, which read compiled Python instead of compiling the source again and again, also where
# the environment says otherwise.
export PYTHONDONTWRITEBYTECODE =

.PHONY: reproduce test pytest browser test-slow mutants lint docs release bench clean native

reproduce: .venv/ready
	$(BIN)/fedscaffold reproduce figure1 --out $(OUT)

# Lint and tests at the same time; one process more than there are cores, since tests of federations and workers
# mostly wait for other processes; in the order of the folders, so that files with one long test do not come last.
test: browser $(if $(filter true,$(CI)),.venv/ci)
	$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: .venv/ready
	$(BIN)/pytest --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadfile --no-loadscope-reorder \
	    -m "not slow"

# Where CI=true the tests of PyTorch and of trackers run, and fail if they would be skipped. Elsewhere they run if
# these packages are installed: on Linux, PyTorch may bring gigabytes for graphics cards.
.venv/ci: .venv/ready
	$(BIN)/pip install --quiet torch==2.13.0 tensorboard mlflow-skinny wandb
	touch $@

# The pages of reports are tested in Chromium; without it these tests are skipped, and fail where CI=true.
browser: .venv/ready
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	     && apt-get -qq update > /dev/null && apt-get -qq install -y chromium > /dev/null 2>&1; } \
	|| echo "warning: no Chromium and no way to install it; the tests of pages in a browser are skipped" >&2

# A process takes tests from another that has many left, since some files have only long tests.
test-slow: .venv/ready
	$(BIN)/pytest --numprocesses $$(getconf _NPROCESSORS_ONLN) --dist worksteal -m slow

# Wrong versions of the source, listed in tests/mutants.json, that the fast tests must reject: half an hour.
mutants: .venv/ready
	$(BIN)/python -m tests.mutants

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

release: .venv/release
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/pip install --quiet dist/*.whl
	build/release/bin/python examples/smoke.py

bench: .venv/bench
	$(BIN)/python -m benchmarks.kernel
	$(BIN)/python -m benchmarks.local_steps
	$(BIN)/python -m benchmarks.methods

# The native engine's library, after a change to its source.
native: .venv/ready
	$(BIN)/python hatch_build.py

clean:
	rm -rf .venv build dist docs/gallery results src/fedscaffold/engines/native/kernel.native.* .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml hatch_build.py $(KERNEL)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

.venv/bench: .venv/ready
	$(BIN)/pip install --quiet --editable '.[bench]'
	touch $@

.venv/release: .venv/ready
	$(BIN)/pip install --quiet --editable '.[release]'
	touch $@
