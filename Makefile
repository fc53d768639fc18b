# Two commands, each complete on a fresh machine with only Python and make:
#   make demo    install into .venv and run the main job on the embedded store
#   make test    install, then lint, types, import contracts and the suite
PYTHON ?= python3
VENV ?= .venv
# An unpinned torch pulls gigabytes of CUDA; README.md says how to get the CPU build elsewhere.
TORCH_SPEC ?= torch==2.13.0
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Half a minute once, so that neither the demo's first plan nor a test waits for it.
COMPILE = $(VENV)/bin/python -c "import placement; placement.compile_kernels()"
DEMO_ARGS ?=
CHAOS_ARGS ?=
PYTEST_ARGS ?=

.PHONY: demo test lint chaos base-install benchmarks clean

demo: $(VENV)/.demo
	$(VENV)/bin/eplb demo $(DEMO_ARGS)

test: $(VENV)/.dev lint
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Faults of 14 kinds for up to ten minutes; fails when anything is lost. Linux only.
chaos: $(VENV)/.demo
	$(VENV)/bin/python -m eplb.chaos $(CHAOS_ARGS)

# The rank side must import from the base install alone: it enters a serving engine's own environment.
base-install:
	$(PYTHON) scripts/check_base_install.py

benchmarks: $(VENV)/.dev
	$(VENV)/bin/python benchmarks/recording_cost.py
	$(VENV)/bin/python benchmarks/store_cost.py
	$(VENV)/bin/python benchmarks/large_traces.py
	$(VENV)/bin/python benchmarks/trace_statistics.py
	$(VENV)/bin/python benchmarks/migration_rounds.py
	$(VENV)/bin/python benchmarks/migrating_steps.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) $(TORCH_SPEC)
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable ".[demo]"
	$(COMPILE)
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) --editable ".[dev]"
	$(COMPILE)
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
