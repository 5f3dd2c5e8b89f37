# Headwater from a fresh clone: `make demo` shows it, `make test` checks it. Each first makes .venv if need be.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Tests start and kill processes and wait for disks: more than two at a time measure the machine, not the code.
# Those that need Spark go to one of them, as its session is started once.
PYTEST_WORKERS ?= -n auto --maxprocesses=2 --dist loadgroup

# What `make check` runs waits for a third of its time: three keep two cores busy.
CHECK_WORKERS ?= -n 3 --dist loadgroup

# Where it is set, each of the many processes that tests start compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-long test check docs docs-serve mutants bench bench-peers compiled dist release soak screenshots fmt clean java jvm chromium clients postgresql

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(INSTALLED) java ## publish, subscribe, fail, retry, resume, archive and query before your eyes
	$(BIN)/headwater demo

demo-long: demo jvm ## the same, and then a story of pumps: MQTT, a typed lake, a model, alerts, dead letters mended
	$(BIN)/python examples/pumps/story.py

test: $(INSTALLED) java jvm chromium clients postgresql ## lint, formatting, types and tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest $(PYTEST_WORKERS)

# Without Spark, the browser, the pages of docs/, faults of the disk, wheels that are built, and what measures.
CHECK_LEAVES_OUT := spark admin docs faults peers bench test_compiled.py cli/test_bench.py client/test_network.py
check: $(INSTALLED) ## the same without what takes long: lint, types, and most tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest $(CHECK_WORKERS) $(CHECK_LEAVES_OUT:%=--ignore=tests/%)

docs: $(INSTALLED) ## the pages of docs/ as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

docs-serve: $(INSTALLED) ## the same on http://127.0.0.1:8000, and anew with each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

mutants: $(INSTALLED) ## break the code on purpose in a hundred places, and tell what no test notices: about an hour
	PYTHONPATH=tests $(BIN)/python -m mutants

bench: $(INSTALLED) ## measure throughput and latency on this machine
	$(BIN)/headwater bench all

compiled: $(INSTALLED) ## .compiled: the same with its hot modules compiled, for PYTHONPATH=.compiled
	rm -rf .compiled
	COMPILE_HEADWATER=1 $(BIN)/python -m build --wheel --no-isolation --outdir .compiled
	$(BIN)/python -m zipfile -e .compiled/*.whl .compiled

dist: $(INSTALLED) ## dist: the sdist and both wheels, checked, and each tried in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	COMPILE_HEADWATER=1 $(BIN)/python -m build --wheel --no-isolation --outdir dist
	$(BIN)/python deploy/release.py --check dist

release: $(INSTALLED) ## call what is unreleased by a number: make release VERSION=1.0.0
	$(BIN)/python deploy/release.py --version '$(VERSION)'

bench-peers: $(INSTALLED) ## the same beside Redis, NATS, RabbitMQ and Mosquitto; writes docs/contribute/benchmarks.md
	$(BIN)/python -m bench.peers

soak: $(INSTALLED) ## the tests that run for long
	$(BIN)/pytest tests -m soak --timeout=0

screenshots: $(INSTALLED) chromium ## the pictures of the dashboard in docs/images, anew
	$(BIN)/python bench/screenshots.py

fmt: $(INSTALLED) ## fix what ruff can fix, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove builds and caches (.venv and headwater-data stay)
	rm -rf build dist .compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Spark runs on Java; what does not need Spark does not need this.
java:
	@command -v java >/dev/null || [ -x "$$JAVA_HOME/bin/java" ] || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "apt-get install openjdk-17-jre-headless"; \
			apt-get update -qq && apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless >/dev/null; \
		else \
			echo "Spark needs Java 17 or newer, and there is none; on Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless" >&2; \
			exit 1; \
		fi; }

jvm: $(INSTALLED) ## build/jvm: the reader in Spark's own process, which sessions take from there
	@command -v javac >/dev/null || [ -x "$$JAVA_HOME/bin/javac" ] || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "apt-get install openjdk-17-jdk-headless"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends openjdk-17-jdk-headless >/dev/null || true; }
	@if command -v javac >/dev/null || [ -x "$$JAVA_HOME/bin/javac" ]; then \
		$(BIN)/python jvm/build.py; \
	else \
		echo "there is no javac, so Spark has the Python reader alone; on Debian and Ubuntu: sudo apt-get install openjdk-17-jdk-headless" >&2; \
	fi

# MQTT clients from elsewhere; tests say which of them they go without.
MQTT_JS := mqtt@5.16.0
clients: $(INSTALLED)
	@command -v mosquitto_sub >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "apt-get install mosquitto-clients"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends mosquitto-clients >/dev/null || true; }
	@[ -d .venv/js/node_modules/mqtt ] || ! command -v npm >/dev/null || { \
		echo "npm install --prefix .venv/js $(MQTT_JS)"; \
		npm install --prefix .venv/js --silent --no-audit --no-fund $(MQTT_JS) >/dev/null || true; }

# A catalog of a lake, for tests, which are left out where there is none.
postgresql:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "apt-get install postgresql"; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends postgresql >/dev/null || true; }

# The tests of the dashboard walk through it with a browser, and are left out where there is none.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "apt-get install chromium"; \
			{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
				echo "chromium could not be installed, so the tests of the dashboard are left out" >&2; \
		else \
			echo "there is no chromium, so the tests of the dashboard are left out; on Debian and Ubuntu: sudo apt-get install chromium" >&2; \
		fi; }

# A .venv that works is kept and only brought up to date; a broken or too old one is made anew.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		command -v $(PYTHON) >/dev/null || \
			{ echo "Headwater needs Python 3.11 or newer, and there is no '$(PYTHON)'; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
			{ echo "Headwater needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another with: make PYTHON=python3.12" >&2; exit 1; }; \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
			{ echo "'$(PYTHON)' cannot make a virtual environment (no ensurepip); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
		echo "$(PYTHON) -m venv .venv"; \
		$(PYTHON) -m venv --clear .venv; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
