# Octavo's everyday commands. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Other projects' clients, whose pins conflict with ours.
CLIENTS := .venv-clients
# More arguments for pytest: make test ARGS="-k scheduler -x"
ARGS ?=
PROTOS := $(wildcard proto/octavo/*/*.proto)
PROTOC = $(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)
KERNEL_SOURCES := $(wildcard executor/native/src/*)

.DEFAULT_GOAL := help
.PHONY: help venv native clients demo test test-slow test-chaos test-compose soak kernels lint stubs-match proto format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  PYTHON=python3.12 chooses the interpreter (3.10 or newer), ARGS=... goes to pytest.'
	@echo "  Without a GPU, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels: a much smaller download."

venv: $(STAMP) native ## Create .venv with everything pinned by constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Octavo needs Python 3.10 or newer, and '$(PYTHON)' is not. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "'$(PYTHON)' cannot create virtual environments; on Debian and Ubuntu, install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(if $(CI),--quiet) --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

native: $(STAMP) ## Compile the kernels that are older than their sources (needs g++ or clang++)
	@$(BIN)/python executor/native/build.py || [ $$? -eq 3 ] # 3: no compiler; the executor computes with torch

clients: $(CLIENTS)/.installed ## Create .venv-clients with guidellm, smg and Triton's client, for the slow tests that use them

$(CLIENTS)/.installed: clients-constraints.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install $(if $(CI),--quiet) --disable-pip-version-check -c clients-constraints.txt \
	  guidellm smg 'tritonclient[grpc]' torch
	@touch $@

demo: venv ## Fetch a small model, serve it, and stream a few answers side by side
	@$(BIN)/octavo demo

test: venv ## Run the tests (no GPU, model or Redis needed)
	$(BIN)/python -m pytest -rs -m "not compose and not slow and not chaos" $(ARGS)

test-slow: venv ## Run the tests that take minutes
	$(BIN)/python -m pytest -rs -m "slow and not compose and not chaos" $(ARGS) || [ $$? -eq 5 ] # 5: there are none

test-chaos: venv ## Kill, stop and restart every process, and cut their connections, under load
	$(BIN)/python -m pytest -rs -s -m chaos $(ARGS) tests/chaos

test-compose: venv ## Build the images and test the whole stack with the Docker engine at hand
	$(BIN)/python -m pytest -rs -m compose $(ARGS) tests/compose

soak: venv ## Serve 500 mixed requests from 16 clients and check every answer
	$(BIN)/python -m benchmarks.soak

kernels: venv ## Compile the GPU's kernels ahead of time for every GPU that they are made for (no GPU needed)
	$(BIN)/python -m benchmarks.gpu --compile-only

lint: venv stubs-match ## Check style, types, import walls, contracts and stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint
	$(BIN)/clang-format --dry-run -Werror $(KERNEL_SOURCES)

stubs-match: venv
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call PROTOC,"$$fresh") && \
	  for stubs in octavo/v1 octavo/kserve; do diff -r -x __init__.py -x __pycache__ "$$fresh/$$stubs" $$stubs || { \
	  echo "$$stubs is not what proto/ generates: run 'make proto' and commit" >&2; exit 1; }; done

proto: venv ## Generate octavo/v1 and octavo/kserve from proto/
	$(call PROTOC,.)

format: venv ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(KERNEL_SOURCES)

clean: ## Remove environments, caches and build outputs (the downloaded model stays)
	rm -rf $(VENV) $(CLIENTS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist executor/native/lib
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
