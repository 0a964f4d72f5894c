# Every task of the project. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# A caller's Python settings must not leak into the project's own virtualenv.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONSAFEPATH PYTHONOPTIMIZE PYTHONUSERBASE
unexport VIRTUAL_ENV CONDA_PREFIX __PYVENV_LAUNCHER__
unexport PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT PIP_REQUIREMENT
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests bench examples mkdocs_hooks.py)
UV_VERSION := 0.13.7

# The stamp holds the folder it was made for: an editable install does not survive a move.
# It is also void when the interpreter behind the virtualenv is gone.
ifneq ($(shell test -x $(PY) && cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help setup test lint format bench torture orchestration aws planted demo cluster-demo docs serve clean lock dashboard e2e screenshots

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv from the lock (quick when nothing changed)
	@:

test: setup lint ## lint, then the quick tests
	$(PY) -m pytest -q -n auto -m "not torture" tests

lint: setup ## ruff (format and rules) and mypy --strict
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m mypy --strict src

format: setup ## rewrite the code in the house format
	$(PY) -m ruff format $(CODE)
	$(PY) -m ruff check --fix $(CODE)

bench: setup ## figures beside those of peers, into bench/results/
	$(PY) -m bench

torture: setup ## the long fault campaigns, with counts
	$(PY) -m pytest -q -s -m torture --timeout 0 tests

orchestration: ## the operators for Airflow and assets for Dagster, in an environment that has both
	python3 -m venv .venv-orchestration
	.venv-orchestration/bin/pip install -q 'apache-airflow>=3' dagster pytest pytest-timeout -e '.[spark,remote]'
	.venv-orchestration/bin/python -m pytest -q tests/orchestration

aws: setup ## the command `aws` in an environment of its own, and the test that runs it
	python3 -m venv .venv-aws
	.venv-aws/bin/pip install -q awscli
	PATH="$(CURDIR)/.venv-aws/bin:$$PATH" $(PY) -m pytest -q -n 0 -rs tests/integration/sqs/test_programs.py -k aws_command

planted: setup ## plant bugs into copies of the source: the quick tests must catch each
	$(PY) -m tests.planted

demo: setup ## a queue that is killed and goes on, then its data on Spark; into demo-output/
	rm -rf demo-output
	$(PY) examples/demo.py --keep demo-output/queue
	$(PY) examples/pipeline_demo.py --keep demo-output/spark

cluster-demo: setup ## a cluster whose nodes are killed while orders flow; the counts agree
	$(PY) examples/cluster_demo.py

docs: setup ## the documentation with the Python API reference, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

serve: setup ## run the server on ./data, at http://127.0.0.1:8080 (/docs shows what it can do)
	$(PY) -m penstock serve --data ./data

dashboard: ## build the dashboard into the package; needs Node 20 and npm
	cd dashboard && npm ci --silent && npm run --silent build

e2e: setup ## the dashboard in a real Chromium, against a real server
	$(PY) -m pytest -q -n 0 tests/e2e

screenshots: setup ## take the pictures of the documentation with Chromium, into docs/img/
	$(PY) -m tests.e2e.screenshots

clean: ## remove .venv, caches and build leftovers
	rm -rf $(VENV) dashboard/node_modules site .lock-venv .venv-orchestration .venv-aws build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# uv lives in a virtualenv of its own, so that only this task needs it. Pins that still fit are
# kept; `make lock LOCK_FLAGS=--upgrade` moves them all to the newest.
lock: ## resolve requirements/*.txt from pyproject.toml again
	@$(find_python); \
	test -x .lock-venv/bin/uv || { "$$python" -m venv --clear .lock-venv; \
	    .lock-venv/bin/python -m pip install --quiet "uv==$(UV_VERSION)"; }; \
	compile() { .lock-venv/bin/uv pip compile --quiet --universal --python-version $(PYTHON_OLDEST) \
	    --generate-hashes --no-emit-package penstock --custom-compile-command "make lock" \
	    $(LOCK_FLAGS) "$$@" pyproject.toml; }; \
	compile --extra all --extra dev --extra bench -o requirements/all.txt

# Sets $python to the first Python that is new enough, or says what is missing.
# `make PYTHON=/path/to/python` decides.
PYTHON_OLDEST := 3.11
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python
ask_version := import sys; print("%d.%d" % sys.version_info[:2]); \
    sys.exit(sys.version_info < tuple(map(int, "$(PYTHON_OLDEST)".split("."))))
define find_python
python=; others=; \
for name in $(or $(PYTHON),$(PYTHONS)); do \
    if version="$$("$$name" -c '$(ask_version)' 2>/dev/null)"; then python="$$name"; break; fi; \
    if [ -n "$$version" ]; then others="$$others; $$name is Python $$version"; fi; \
done; \
if [ -z "$$python" ]; then \
    echo "Python $(PYTHON_OLDEST) or newer is missing: none of '$(or $(PYTHON),$(PYTHONS))' is it$$others." >&2; \
    echo "Install it, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
    exit 1; \
fi
endef

$(STAMP): requirements/all.txt pyproject.toml
	@$(find_python); \
	echo "Setting up $(VENV) with $$("$$python" --version) ..."; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; fi; \
	if ! $(PY) -m pip --version >/dev/null 2>&1 || [ "$$(cat $(STAMP) 2>/dev/null)" != "$(CURDIR)" ]; then \
	    "$$python" -m venv --clear $(VENV); fi; \
	rm -f $(STAMP); \
	$(PY) -m pip install --quiet --require-hashes -r requirements/all.txt; \
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	$(PY) -m compileall -q src; \
	echo "$(CURDIR)" > $(STAMP)
