# Verbs for people; `make` prints them. Everything installs into .venv, remembered by stamp files there.
PYTHON ?= python3
# The newest release this project is tested with. Installed first, so that no other package chooses a larger build of it.
TORCH  ?= torch==2.13.0
ARGS   ?=
VENV   := .venv
PY     := $(VENV)/bin/python
C_FILES = $(wildcard ipc/csrc/*.[ch] tests/native/*.[ch] tests/models/*.[ch])
FAST   := not system and not engines and not cluster and not slow

.DEFAULT_GOAL := help
.PHONY: help setup build test test-slow test-system test-engines test-cluster demo bench native asan tsan lint types check fmt clean

help: ## print these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q $(TORCH)
	@touch $@

$(VENV)/.package: pyproject.toml setup.py | $(VENV)/.torch
	$(PY) -m pip install -q -e '.[hf,test]'
	@touch $@

$(VENV)/.ring: $(wildcard ipc/csrc/*.[ch]) $(VENV)/.package
	$(PY) setup.py -q build_ext --inplace
	@touch $@

$(VENV)/.lint $(VENV)/.demo $(VENV)/.decide $(VENV)/.bench: $(VENV)/.%: $(VENV)/.package
	$(PY) -m pip install -q -e '.[$*]'
	@touch $@

# The published package of typed decisions, in a venv of its own; where it cannot be had, its tests are skipped by name.
$(VENV)/.peer: $(VENV)/.ring
	-$(PY) -P -c 'from undercurrent.benchmarks.predict_peer import predict_peer_python as make; print(make())'
	@touch $@

setup: $(VENV)/.package ## make .venv and install the package with what tests need

build: $(VENV)/.ring ## compile the extension in place

test: build ## the tests of an ordinary user: at most 15 minutes on 2 cores
	$(PY) -P -m pytest -m '$(FAST)' $(ARGS)

test-slow: build ## the long doses of the evidence: kills, fuzz, models
	$(PY) -P -m pytest -m 'slow and not system and not engines and not cluster' $(ARGS)

# pytest's status 5 says that no test was chosen: a tier may be empty.
test-system test-engines test-cluster: test-%: build
	@$(PY) -P -m pytest -m '$*' $(ARGS) || { status=$$?; [ $$status -eq 5 ] || exit $$status; }
test-system: ## what needs root, a Debian package or a cross compiler
test-engines: $(VENV)/.demo $(VENV)/.decide $(VENV)/.peer ## what needs a big engine or a real model
test-cluster: ## two Ray nodes in network namespaces; root

demo: build $(VENV)/.demo ## a real model, three probes, one stopped generation (ARGS=--tiny: random weights)
	$(PY) -P -m undercurrent.examples.demo $(ARGS)

bench: build $(VENV)/.bench ## the benchmarks, each beside its floor (ARGS=--peer: beside the published package)
	$(PY) -P -m undercurrent.benchmarks $(ARGS)

native: $(VENV)/.package ## the C tests, plain
	$(PY) tests/native/run.py plain $(ARGS)

asan tsan: $(VENV)/.package
	$(PY) tests/native/run.py $@ $(ARGS)
asan: ## the C tests under the address and undefined-behaviour sanitizers
tsan: ## the C tests under the thread sanitizer

lint: $(VENV)/.lint ## ruff, clang-format and the floors
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(if $(C_FILES),$(VENV)/bin/clang-format --dry-run --Werror $(C_FILES))
	$(VENV)/bin/lint-imports --no-cache --no-logo

types: build $(VENV)/.lint ## mypy --strict and stubtest for the extension
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist .ci/stubtest-allowed --ignore-unused-allowlist undercurrent.ipc._ring

check: lint types native asan tsan ## all of the above that is not pytest

fmt: $(VENV)/.lint ## rewrite Python and C in the project's format
	$(PY) -m ruff check --fix-only -q .
	$(PY) -m ruff format -q .
	$(if $(C_FILES),$(VENV)/bin/clang-format -i $(C_FILES))

clean: ## remove what builds and tools wrote; .venv stays
	rm -rf build dist runs undercurrent.egg-info ipc/_ring*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(VENV)/.ring
