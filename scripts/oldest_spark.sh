#!/bin/sh
# Runs tests/spark with the oldest PySpark that the extra `spark` allows, in an environment of its own.
set -eu
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/.*"pyspark\[[a-z,]*\]>=\([0-9.]*\),.*/\1/p' pyproject.toml)
[ -n "$oldest" ] || { echo "pyproject.toml names no oldest PySpark" >&2; exit 1; }
environment=.venv-oldest-spark
stamp=$environment/stamp-$oldest-$(cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
if [ ! -e "$stamp" ]; then
  echo "Setting up $environment with PySpark $oldest (about 450 MB)." >&2
  .venv/bin/python -m venv --clear "$environment"
  grep -v '^pyspark==' constraints.txt >"$environment/constraints.txt"
  "$environment/bin/python" -m pip install -q -c "$environment/constraints.txt" -e ".[demo,test]" "pyspark==$oldest"
  : >"$stamp"
fi
export PYSPARK_PYTHON="$PWD/$environment/bin/python" PYSPARK_DRIVER_PYTHON="$PWD/$environment/bin/python"
export SPARK_LOCAL_IP=127.0.0.1 SPARK_TESTS=all
exec "$environment/bin/python" -m pytest tests/spark "$@"
