#!/bin/sh
# Makes .venv for what is asked (core, demo or test) and does nothing when it is there and current.
#
# The core is Tailrace with what every node needs; demo adds Spark and a chart, test the tools. The core is installed by
# itself, so that the demo can begin without Spark.
#
# The stamp is a hash of everything the environment is made from, and of where it stands: a moved checkout gets a new one.
set -eu
level=${1:?"usage: bootstrap.sh core|demo|test"}
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

find_python() {
  for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
  done
  say "Tailrace needs Python >= 3.11 and found none. On Debian or Ubuntu: apt-get install python3 python3-venv"
  exit 1
}

make_venv() {
  if "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    "$1" -m venv --clear .venv
  elif "$1" -c 'import virtualenv' >/dev/null 2>&1; then
    "$1" -m virtualenv --clear -q .venv
  else
    say "This Python cannot make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"
    exit 1
  fi
}

java_is_new_enough() {
  java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
  [ "${major:-0}" -ge 17 ]
}

fingerprint() {
  { pwd; cat pyproject.toml setup.py constraints.txt scripts/bootstrap.sh src/tailrace/protocol/records/*.pyx src/tailrace/protocol/records/*.pxi; } | cksum | tr ' ' '-'
}

# Runs pip in .venv, and says every three seconds what it does.
install() {
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    .venv/bin/python -m pip install --progress-bar on -c constraints.txt "$@" >.venv/pip.log 2>&1 &
  pip=$!
  trap 'kill $pip 2>/dev/null || true' INT TERM
  while kill -0 $pip 2>/dev/null; do
    sleep 3
    doing=$(sed -n 's/^\(Installing\|Building [a-z]*\|Collecting [^ <>=!(]*\|Downloading\).*/\1/p' .venv/pip.log | tail -n 1)
    say "  $(du -sm .venv | cut -f1) MB in .venv; ${doing:-Starting pip}"
  done
  if ! wait $pip; then
    tail -n 25 .venv/pip.log >&2
    say "Setting up failed; the whole log is .venv/pip.log"
    exit 1
  fi
}

key=$(fingerprint)
extras=
case $level in
core) ;;
demo) extras=demo ;;
test) extras=demo,test ;;
*)
  say "usage: bootstrap.sh core|demo|test"
  exit 1
  ;;
esac
[ -z "$extras" ] || java_is_new_enough || extras=$extras,jre

# An environment that has everything for the tests has everything for the demo, and each has the core.
if [ -z "$extras" ]; then
  for stamp in .venv/stamp-*-"$key"; do
    [ ! -e "$stamp" ] || exit 0
  done
fi
[ ! -e ".venv/stamp-$extras-$key" ] || exit 0
[ "$level" != demo ] || [ ! -e ".venv/stamp-$(printf %s "$extras" | sed 's/demo/demo,test/')-$key" ] || exit 0

if [ ! -e ".venv/stamp-core-$key" ]; then
  python=$(find_python)
  say "Setting up .venv with $("$python" --version) ($python): Tailrace and what it needs (about 20 MB)."
  [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || make_venv "$python"
  install -e .
  .venv/bin/python -c 'from tailrace.protocol.records.kernels import KERNEL; print(f"kernel: {KERNEL}")' >&2
  rm -f .venv/stamp-*
  : >".venv/stamp-core-$key"
fi
[ -n "$extras" ] || exit 0
case $extras in
*jre*) say "Downloading Spark (about 450 MB), Arrow, and a Java runtime, since there is no Java >= 17." ;;
*) say "Downloading Spark (about 450 MB) and Arrow; Java is here." ;;
esac
# Tailrace itself is there, and is not built a second time.
install "tailrace[$extras]"
: >".venv/stamp-$extras-$key"
