# Each target works on a fresh checkout: it makes .venv itself and says what it downloads.
.PHONY: help demo demo-core test sim soak bench fuzz check wheel clean
.DEFAULT_GOAL := help

PY := .venv/bin/python
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/.venv/bin/python
export SPARK_LOCAL_IP := 127.0.0.1
export PYTHONWARNINGS :=
# Without compiled modules every node that a test or a benchmark starts would take half a second more.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo    kill the leader of three nodes under load and count every record; then a year of real flights through three nodes and a Spark pipeline, with a chart   (needs Python >= 3.11)"
	@echo "make demo-core   the first part of it alone: nothing of Spark is installed"
	@echo "make test    the tests whose turn it is; TURN=all runs all, ARGS=\"-k name\" chooses"
	@echo "make sim     300 seeded runs of a quorum under faults, with what they reached (SEEDS=n; SEED=n repeats one and tells it)"
	@echo "make soak    50 kills and 20 power cuts of a node, and 2,000 of a simulated one, all under load (KILLS=n POWER_CUTS=n); 200 flipped bits in the files of three nodes (FLIPS=n); 20 rolling restarts (ROLLING_RESTARTS=n); 20 moves of all replicas (REASSIGNMENTS=n); ten minutes of kills and 50 power cuts of a cluster (QUORUM_SECONDS=n QUORUM_POWER_CUTS=n); half an hour of faults, ten minutes without and 50 power cuts of three racks under load (REPLICA_FAULT_SECONDS=n REPLICA_QUIET_SECONDS=n REPLICA_POWER_CUTS=n); half an hour of faults while own and foreign clients write transactions (TRANSACTION_FAULT_SECONDS=n); half an hour of faults and ten minutes without, while members of own and foreign clients share a topic by slots (ELASTIC_FAULT_SECONDS=n ELASTIC_QUIET_SECONDS=n); half an hour of faults under two streams of Spark's (STREAM_FAULT_SECONDS=n); 1,000 examples or more of each property, 3,000 histories or so of each model of a log, a group and transactions (MODEL_RUNS=n times the usual number); 20,000 runs of a quorum (SEEDS=n), resumed where they stopped; 1,000 of whole nodes (NODES=n); 5,000 of copies of partitions with consumers (REPLICAS=n); 1,000 of members of groups (MEMBERS=n); 5,000 of transactions over three brokers (TRANSACTIONS=n), resumed too; the tests of Spark with the oldest PySpark allowed; units, properties and scenarios with each Python from 3.11 on; Kafka Streams, Connect, MirrorMaker 2 and Quix Streams; the tests that Faust, Arroyo, Kombu and streamz have of a broker; 20,000 produced batches with two wrong fields beside Apache Kafka (WRONG_BATCHES=n); consumer groups of every client over 5,000 topics with long names (SUBSCRIBED_TOPICS=n); every order of a few things"
	@echo "make check   formatting, lint, prose, types and layers; under a minute"
	@echo "make wheel   the wheel and the source distribution in dist/, tried in a fresh environment, with their sizes; a minute"
	@echo "make bench   speed beside Apache Kafka, a mock, the raw loopback, Spark's connector and the text of KIP-630, in one run; about half an hour"
	@echo "make fuzz    hostile bytes for everything that decodes, and for a running node; about ten minutes"

# The part without Spark comes first, so that there is something to see before the large download.
demo: demo-core
	@sh scripts/bootstrap.sh demo
	@$(PY) examples/flights_demo.py $(ARGS)

demo-core:
	@sh scripts/bootstrap.sh core
	@$(PY) examples/failover_demo.py

# tests/turns.py says which cases a run has, tests/lanes.py which run side by side, tests/work_order.py which begin first,
# tests/second_runs.py which may run a second time, and why.
test:
	@sh scripts/bootstrap.sh test
	@$(PY) tests/lanes.py $(ARGS)

sim:
	@sh scripts/bootstrap.sh test
	@$(PY) -m simulation $(if $(SEED),repeat $(SEED),seeds --count $(or $(SEEDS),300)) $(ARGS)

soak: export TURN := all
soak: export KILLS := $(or $(KILLS),50)
soak: export POWER_CUTS := $(or $(POWER_CUTS),2000)
soak: export REAL_POWER_CUTS := $(or $(REAL_POWER_CUTS),20)
soak: export BAD_DISKS := $(or $(BAD_DISKS),20)
soak: export FLIPS := $(or $(FLIPS),200)
soak: export ROLLING_RESTARTS := $(or $(ROLLING_RESTARTS),20)
soak: export REASSIGNMENTS := $(or $(REASSIGNMENTS),20)
soak: export REPLICA_FAULT_SECONDS := $(or $(REPLICA_FAULT_SECONDS),1800)
soak: export KEYED_FAULT_SECONDS := $(or $(KEYED_FAULT_SECONDS),900)
soak: export ELASTIC_FAULT_SECONDS := $(or $(ELASTIC_FAULT_SECONDS),1800)
soak: export ELASTIC_QUIET_SECONDS := $(or $(ELASTIC_QUIET_SECONDS),600)
soak: export TRANSACTION_FAULT_SECONDS := $(or $(TRANSACTION_FAULT_SECONDS),1800)
soak: export ATTACKS := all
soak: export SPARK_TESTS := all
soak: export WRONG_BATCHES := $(or $(WRONG_BATCHES),20000)
soak: export SUBSCRIBED_TOPICS := $(or $(SUBSCRIBED_TOPICS),5000)
soak: export SPARK_KILLS := $(or $(SPARK_KILLS),50)
soak: export SPARK_RECORDS := $(or $(SPARK_RECORDS),2000000)
soak: export STREAM_FAULT_SECONDS := $(or $(STREAM_FAULT_SECONDS),1800)
soak: export REPLICA_QUIET_SECONDS := $(or $(REPLICA_QUIET_SECONDS),600)
soak: export REPLICA_POWER_CUTS := $(or $(REPLICA_POWER_CUTS),50)
soak: export QUORUM_SECONDS := $(or $(QUORUM_SECONDS),600)
soak: export QUORUM_POWER_CUTS := $(or $(QUORUM_POWER_CUTS),50)
soak:
	@sh scripts/bootstrap.sh test
	@MODEL_RUNS=$(or $(MODEL_RUNS),20) $(PY) -m pytest $$(grep -lrE --include="*.py" "RuleBasedStateMachine|@given|^(from|import) budgets" tests/properties tests/scenarios tests/simulation tests/unit)
	@$(PY) -m pytest tests/crash tests/simulation --timeout 7200 -rP --show-capture=stdout $(ARGS)
	@$(PY) -m pytest tests/crash/spark/soak_standalone_spark.py tests/crash/spark/soak_streams_under_faults.py -rP --show-capture=stdout
	@$(PY) -m pytest tests/spark/connector tests/spark/test_kit.py tests/spark/test_connect.py tests/spark/test_doctor.py
	@$(PY) -m pytest tests/interop/differential/test_wrong_batches.py --timeout 7200
	@$(PY) -m pytest tests/interop/groups/test_long_subscriptions.py --timeout 7200
	@$(PY) -m pytest tests/interop/programs tests/interop/suites/test_foreign_suites.py
	@sh scripts/oldest_spark.sh
	@sh scripts/every_python.sh
	@$(PY) -m simulation soak --counted $(or $(SEEDS),20000)
	@$(PY) -m simulation nodes --count $(or $(NODES),1000)
	@$(PY) -m simulation replicas --counted $(or $(REPLICAS),5000)
	@$(PY) -m simulation members --count $(or $(MEMBERS),1000)
	@$(PY) -m simulation transactions --count $(or $(TRANSACTIONS),5000)
	@$(PY) -m simulation scopes

check:
	@sh scripts/bootstrap.sh test
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) scripts/check_prose.py
	@$(PY) scripts/check_house.py
	@$(PY) -c "from importlinter.cli import lint_imports_command as run; run()" --no-logo
	@$(PY) -m mypy

wheel:
	@sh scripts/bootstrap.sh core
	@sh scripts/wheel.sh

bench:
	@sh scripts/bootstrap.sh test
	@$(PY) -m benchmarks $(ARGS)

fuzz:
	@sh scripts/bootstrap.sh test
	@$(PY) -m fuzz $(ARGS)

clean:
	rm -rf .venv .venv-* build dist demo-output src/*.egg-info src/tailrace/protocol/records/_kernels*.so src/tailrace/protocol/records/_kernels.c
