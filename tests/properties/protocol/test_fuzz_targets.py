"""The fuzz targets as a test: what they once found, their seeds, and a few hundred changes of these.

`make fuzz` searches for longer and with the help of coverage. Here the same bytes come in every run.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import fuzz
from fuzz import golden
from fuzz.mutation import Mutator
from fuzz.targets import TARGETS, Target, records
from tailrace.net import sasl
from tailrace.net.connection import Connection
from tailrace.protocol.records import _kernels_twin
from tailrace.protocol.registry import APIS
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode_from
from tailrace.server.authentication.exchanges import Granted, PlainExchange
from tailrace.storage import EpochCache
from tailrace.storage.recovery import loader
from tailrace.storage.segment_files import batch_file
from testkit.records import framing

ROOT = Path(fuzz.__file__).parents[1]
REGRESSIONS = sorted((ROOT / "fuzz" / "regressions").glob("*/*"))
CHANGES = 400

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}: {path.name}")
def test_each_input_that_once_failed_passes(path: Path) -> None:
    TARGETS[path.parent.name].check(path.read_bytes())


@every_target
def test_a_promise_holds_for_the_seeds_and_for_changes_of_them(target: Target) -> None:
    seeds = list(target.seeds())
    assert seeds
    mutator = Mutator(seeds, Random(target.name), max_bytes=target.max_bytes)
    check_all(target, [*seeds, *(mutator.next() for _ in range(CHANGES))])


def trusting(*_: object) -> None:
    """Checks nothing."""


PLANTED: list[tuple[str, object, str, object]] = [
    ("recovery", batch_file, "check_crc", trusting),
    ("recovery", loader.Loader, "_continues", lambda *_: True),
    ("framing", framing, "LENGTH_BYTES", 3),
    ("kernels", _kernels_twin, "MAX_INPUT", 10),
    ("batches", records, "read_records", lambda *_, **__: []),
    ("compression", records, "compress", lambda _, data: bytes(data)),
    ("files", EpochCache, "to_bytes", lambda _: b"0\n0\n"),
    ("sasl-gate", PlainExchange, "take", lambda *_: Granted("bob", b"")),
    ("hostile-broker", Connection, "_check_length", trusting),
    ("sasl-client", sasl._ScramLogin, "next", lambda *_: None),
]


def check_all(target: Target, inputs: list[bytes]) -> None:
    for data in inputs:
        target.check(data)


@pytest.mark.parametrize(
    ("name", "module", "attribute", "broken"), PLANTED, ids=[f"{row[0]}: {row[2]}" for row in PLANTED]
)
def test_a_fault_that_was_planted_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, module: object, attribute: str, broken: Callable[..., object]
) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    monkeypatch.setattr(module, attribute, broken)
    mutator = Mutator(seeds, Random(name), max_bytes=target.max_bytes)
    inputs = [*seeds, *(mutator.next() for _ in range(1_500))]
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the fault makes of it
        check_all(target, inputs)


def test_every_captured_request_can_be_read() -> None:
    frames = [frame for api in APIS.values() for frame in golden.client_frames(api.name)]
    assert len(frames) > 50
    for frame in frames:
        header, position = decode_request_header(frame)
        decode_from(APIS[header.api_key].request, header.api_version, frame, position)


def test_the_same_seed_makes_the_same_changes() -> None:
    seeds = [b"one", b"another"]
    first, second = (Mutator(seeds, Random(5)) for _ in range(2))
    assert [first.next() for _ in range(100)] == [second.next() for _ in range(100)]


@pytest.mark.parametrize("mode", ["guided", "random"])
def test_a_worker_tells_what_it_did(tmp_path: Path, mode: str) -> None:
    if mode == "guided":
        pytest.importorskip("atheris", reason="atheris has no wheel for this Python")
    command = [sys.executable, "-m", "fuzz.worker", "control-records", "1", "1", str(tmp_path), mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "number_of_executed_units: " in done.stderr
    assert (" cov: " in done.stderr) == (mode == "guided")
    assert not list((tmp_path / "crashes").iterdir())
