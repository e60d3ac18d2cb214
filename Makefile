# kvsteer's tasks. `make demo` and `make test` need only Python >= 3.11 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ONLY   ?=
# Interpreters of `make pythons`: names on PATH, or paths.
PYTHONS ?= python3.12 python3.13 python3.14

# Tests start hundreds of processes: what Python compiled once is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint types unit pythons properties integration faults fuzz soak guarantees docs bench lock clean protos

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)   ## a real Envoy, a real Redis, a gateway and four replicas: round_robin against the default policy
	@$(BIN)/kvsteer demo

test: lint types unit integration ## everything, the real Envoy and Redis included

lint: $(STAMP)   ## ruff: style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	@$(BIN)/mypy

unit: $(STAMP)   ## the fast tests, on every core: no process is started
	@$(BIN)/python -m tests.side_by_side

pythons:         ## the fast tests under other Pythons (PYTHONS="python3.13 /a/path/python3"), each in a .venv-VERSION
	@set -e; for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); echo "Python $$version:"; \
		$(MAKE) --no-print-directory unit PYTHON=$$python VENV=.venv-$$version; \
	done

properties: $(STAMP) ## the fast tests with forty times as many examples of each property: a quarter of an hour
	@KVSTEER_EXAMPLES=20 $(BIN)/python -m tests.side_by_side

integration: $(STAMP) ## real Envoy, real Redis, real HTTP, fleets in virtual time: side by side, then what needs the machine
	@KVSTEER_PATIENCE=4 $(BIN)/pytest tests/integration tests/worlds -m "not long and not alone" -n 3 --dist loadfile --no-loadscope-reorder
	@KVSTEER_PATIENCE=4 $(BIN)/pytest tests/integration -m "alone and not long"

faults: $(STAMP) ## every fault of Redis and of gateways under load, the long ones included
	@KVSTEER_PATIENCE=1 $(BIN)/pytest tests/integration/test_shared_faults.py

fuzz: $(STAMP)   ## coverage-guided fuzzing of the fast transport for SECONDS (60); installs atheris
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	@$(BIN)/python -m tests.fuzz.fuzz_h2 -max_total_time=$(or $(SECONDS),60) -max_len=4096

soak: $(STAMP)   ## an hour in ten minutes through Envoy, and a day in one process: is memory flat
	@$(BIN)/python -m benchmarks.soak --check
	@$(BIN)/python -m benchmarks.soak_day --check

guarantees: $(STAMP) ## run every command of docs/guarantees.md (ONLY=word for some)
	@KVSTEER_PATIENCE=1 KVSTEER_EXAMPLES=1 $(BIN)/python -m benchmarks.guarantees --only "$(ONLY)"

# Not --quiet, with which mkdocs does not count its warnings.
docs: $(STAMP)   ## the documentation as a site in build/site, every link and anchor checked
	@$(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

bench: $(STAMP)  ## the benchmarks of docs/performance.md
	@$(BIN)/python -m benchmarks.decision
	@$(BIN)/python -m benchmarks.server_cpu
	@$(BIN)/python -m benchmarks.index_memory
	@$(BIN)/python -m benchmarks.reading

lock:            ## refresh requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --all-extras --group dev --group docs --no-annotate --no-header --upgrade -o requirements.lock
	@sed -i '1i # The exact versions kvsteer is developed, tested and demonstrated with. Made by `make lock`; install with pip --require-hashes.' requirements.lock

protos: $(STAMP) ## compile protos/ into extproc/pb/
	@$(BIN)/python protos/compile.py

clean:           ## remove the environment and caches
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache
