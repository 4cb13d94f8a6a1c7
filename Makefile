# Each target works on a fresh checkout: it makes .venv itself and says what it downloads.
.PHONY: help demo test bench check clean
.DEFAULT_GOAL := help

PY := .venv/bin/python
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/.venv/bin/python
export SPARK_LOCAL_IP := 127.0.0.1
export PYTHONWARNINGS :=

help:
	@echo "make demo    load a year of real flights, run a Spark pipeline over them, draw a chart   (needs Python >= 3.11)"
	@echo "make test    all tests"
	@echo "make check   formatting, lint, types and layers; under a minute"
	@echo "make bench   speed beside a peer, in one run"

demo:
	@sh scripts/bootstrap.sh demo
	@$(PY) examples/flights_demo.py $(ARGS)

test:
	@sh scripts/bootstrap.sh test
	@$(PY) -m pytest $(ARGS)

check:
	@sh scripts/bootstrap.sh test
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -c "from importlinter.cli import lint_imports_command as run; run()" --no-logo
	@$(PY) -m mypy

bench:
	@sh scripts/bootstrap.sh test
	@$(PY) -m benchmarks $(ARGS)

clean:
	rm -rf .venv build demo-output src/*.egg-info src/tailrace/protocol/records/_kernels*.so src/tailrace/protocol/records/_kernels.c
