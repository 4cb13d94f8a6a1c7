#!/bin/sh
# Makes .venv for what is asked (demo or test) and does nothing when it is there and current.
#
# The stamp is a hash of everything the environment is made from, and of where it stands: a moved checkout gets a new one.
set -eu
level=${1:?"usage: bootstrap.sh demo|test"}
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

extras=demo
[ "$level" = test ] && extras=demo,test
java_is_new_enough || extras=$extras,jre

stamp=".venv/stamp-$extras-$(fingerprint)"
[ -e "$stamp" ] && exit 0
# An environment that has everything for the tests has everything for the demo.
[ "$level" = demo ] && [ -e ".venv/stamp-$(printf %s "$extras" | sed 's/demo/demo,test/')-$(fingerprint)" ] && exit 0

python=$(find_python)
say "Setting up .venv with $("$python" --version) ($python)."
[ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null || make_venv "$python"
case $extras in
*jre*) say "Downloading Tailrace's dependencies: Spark (about 450 MB), Arrow, and a Java runtime, since there is no Java >= 17." ;;
*) say "Downloading Tailrace's dependencies: Spark (about 450 MB) and Arrow; Java is here." ;;
esac
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
.venv/bin/python -m pip install --progress-bar on -c constraints.txt -e ".[$extras]" >.venv/pip.log 2>&1 &
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
.venv/bin/python -c 'from tailrace.protocol.records.kernels import KERNEL; print(f"kernel: {KERNEL}")' >&2
rm -f .venv/stamp-*
: >"$stamp"
