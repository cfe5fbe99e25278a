# `make demo` and `make test` are all that one needs; both set the project up first.
# Everything is installed into .venv, by the versions and hashes in requirements.lock.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# What is imported is compiled once, not by every process.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/set-up

.PHONY: help setup demo test unit soak check docs browser lock proto bench clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install what the other targets need into .venv (they do it themselves)

$(STAMP): requirements.lock pyproject.toml infra/set-up.sh infra/native.py $(wildcard commitlog/codecs/_native*.[ch])
	@infra/set-up.sh $(VENV)
	@touch $@

demo: $(STAMP) ## Run the main job on real data: broker, log, Spark, writers, report
	@$(BIN)/commitlog demo $(ARGS)

# Workers share the whole suite, file by file, more than two cores keep busy: tests wait for others much
# of their time. One takes up to 1.5 GB with all that it starts; WORKERS=3 suits a small machine. What is
# chosen runs in one process.
WORKERS := $(if $(ARGS),0,5)

test: $(STAMP) ## Run all tests; ARGS="tests/unit -k word" chooses
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TRIES) $(ARGS)

UNITS := tests/test_house.py tests/scenarios tests/properties tests/unit

unit: $(STAMP) ## Run the quick tests: no broker, no Spark, nothing slow
	@$(BIN)/python -m pytest -m "not broker and not spark and not slow" $(UNITS) $(ARGS)

# What `make soak` tries; the next seeds are new ground. Its page is build/soak.html.
SEED := 1
SEEDS := 17000
HISTORIES_SECONDS := 3600
FAULT_ROUNDS := 200
SERVICE_SECONDS := 3600

soak: $(STAMP) ## Search for hours: SEED=1 SEEDS=17000 HISTORIES_SECONDS=3600 FAULT_ROUNDS=200
	$(BIN)/python -m tests.simulation --from $(SEED) --seeds $(SEEDS) --transactions 60
	$(BIN)/python -m tests.histories --seed $(SEED) --seconds $(HISTORIES_SECONDS)
	$(BIN)/python -m tests.histories.rows --seed $(SEED) --seconds $(HISTORIES_SECONDS)
	$(BIN)/python -m tests.histories.columns --seed $(SEED) --seconds $(HISTORIES_SECONDS)
	$(BIN)/python -m tests.histories.iceberg --seed $(SEED) --seconds $(HISTORIES_SECONDS)
	FUZZ_SEED=$(SEED) FUZZ_SECONDS=$(HISTORIES_SECONDS) $(BIN)/python -m pytest -q --timeout=0 \
	  tests/conformance/test_fuzzed_tables.py
	COMMITLOG_FUZZ_SECONDS=300 COMMITLOG_HOSTILE_SECONDS=$(HISTORIES_SECONDS) $(BIN)/python -m pytest \
	  -q -s --timeout=0 -k "minutes or hostile" tests/unit/test_openapi.py \
	  tests/integration/test_hostile_clients.py
	COMMITLOG_SOAK_SECONDS=$(SERVICE_SECONDS) $(BIN)/python -m pytest -q --timeout=0 \
	  tests/integration/test_kept.py
	$(BIN)/commitlog bench rag --seconds 180
	$(BIN)/python -m tests.faults --seed $(SEED) --rounds $(FAULT_ROUNDS)
	@mkdir -p build
	$(BIN)/commitlog bench soak --seconds $(SERVICE_SECONDS) --into build/soak.html

check: $(STAMP) ## Check lint, format, types and the house's contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py

docs: $(STAMP) ## Build the documentation into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -f infra/mkdocs.yml
	@echo "look at it: python3 -m http.server -d build/site"

browser: ## Find a Chromium for the tests of the page, or install Debian's as root
	@infra/browser.sh

bench: $(STAMP) ## Measure commits per second beside pylance's own
	@$(BIN)/commitlog bench commit $(ARGS)

lock: $(STAMP) ## Resolve pyproject.toml anew into requirements.lock
	$(BIN)/uv pip compile -q --upgrade --universal --generate-hashes --no-header --no-annotate \
	    --all-extras --group dev --group docs pyproject.toml -o requirements.lock
	@! grep -nE '://|^-' requirements.lock || { echo "requirements.lock names an address" >&2; exit 1; }

proto: $(STAMP) ## Generate commitlog/lancepb from schemas/
	$(BIN)/python -m infra.proto

clean: ## Remove what was generated, .venv too
	rm -rf $(VENV) build dist demo-data .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
