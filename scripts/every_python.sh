#!/bin/sh
# Runs units, properties and scenarios with every Python from 3.11 on that is on PATH or among pyenv's versions, in an
# environment of its own for each minor version (.venv-3.12; ENVIRONMENTS names another place). PYTHONS="3.12 3.13"
# chooses the versions, TURN the cases (all); arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
export TURN="${TURN:-all}" PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$*" >&2; }

find_python() {
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
      command -v "$candidate"
      return
    fi
  done
}

set_up() {
  stamp=$2/stamp-$(cat pyproject.toml setup.py constraints.txt src/tailrace/protocol/records/*.pyx src/tailrace/protocol/records/*.pxi | cksum | tr ' ' '-')
  if [ ! -e "$stamp" ]; then
    say "Setting up $2 with $("$1" --version); the log is $2/pip.log."
    "$1" -m venv --clear "$2" || return
    "$2/bin/python" -m pip install -c constraints.txt -e ".[demo,test]" >"$2/pip.log" 2>&1 || return
    : >"$stamp"
  fi
}

failed=0
results=
note() { results="$results$*
"; }

for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
  environment=${ENVIRONMENTS:-.venv-}$version
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    note "Python $version: not on this machine"
  elif ! set_up "$python" "$environment"; then
    note "Python $version: cannot be set up, see $environment/pip.log"
    failed=1
  else
    log=$environment/tests.log
    say "Python $version runs tests/unit, tests/properties and tests/scenarios; the log is $log."
    "$environment/bin/python" -m pytest --numprocesses auto --dist loadfile \
      tests/unit tests/properties tests/scenarios "$@" >"$log" 2>&1 || failed=1
    grep -E '^(FAILED|ERROR) ' "$log" >&2 || true
    note "$("$environment/bin/python" --version): $(tail -n 1 "$log")"
  fi
done
printf '%s' "$results"
exit $failed
