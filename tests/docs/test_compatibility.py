"""docs/compatibility.md and docs/differences.md are true: their tables are what the code says.

REWRITE=1 pytest tests/docs/test_compatibility.py     writes the tables anew
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.downloads.kafka_jars import VERSION as KAFKA_VERSION
from docs.generated import check_generated
from interop import kafkajs
from interop.clients import CLIENTS, CODECS, knows
from interop.differential.differences import table
from interop.differential.listed import DIFFERENCES
from interop.differential.listed_access import ACCESS
from interop.differential.listed_replicated import REPLICATED
from interop.differential.listed_transactions import TRANSACTIONS
from interop.differential.listed_wrong_batches import WRONG_BATCHES, WRONG_BATCHES_OF_TOPICS
from interop.differential.members.listed_members import MEMBERS
from interop.groups.test_group_rebalance import EVERY_CLIENT
from interop.kafka_tools import MAIN_CLASSES
from interop.suites.go_modules import GO_MODULES
from interop.suites.kafka_python_suite import KAFKA_PYTHON
from tailrace.model.errors import ErrorCode
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.protocol.registry import APIS, CLIENT_APIS, FORWARDED_APIS
from tailrace.protocol.schema import MAX_ELEMENTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
APPENDIX = ROOT / "docs" / "differences.md"
_DECISIONS = sorted(set(re.findall(r"docs/decisions/(\d{4}[\w-]*\.md)", PAGE.read_text() + APPENDIX.read_text())))
INTEROP = ROOT / "tests" / "interop"
_ACCEPTED_ONLY = "Accepted for Kafka's files"
_KAFKAS_DEFAULT = re.compile(r"\(Kafka: ([^)]*)\)")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def apis() -> str:
    """Every API that a node serves."""

    def versions(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"

    def row(key: int) -> tuple[str, ...]:
        api = APIS[key]
        notes = {
            f"announced from {api.advertised_min}": api.advertised_min != api.min_version,
            "on the controllers' listener": key not in CLIENT_APIS,
            "carried out by the active controller": key in FORWARDED_APIS,
            f"at most {api.max_elements:,} elements": api.max_elements < MAX_ELEMENTS,
        }
        shown = "; ".join(note for note, is_true in notes.items() if is_true)
        return str(key), api.name, versions(api.min_version, api.max_version), shown

    return _table(("Key", "API", "Versions", ""), map(row, sorted(APIS)))


def other_defaults() -> str:
    """Settings whose default is not Kafka's, by what their documentation says."""
    rows = [
        (f"`{name}`", f"`{setting.format(setting.default)}`", found[1])
        for name, setting in sorted(BROKER_SETTINGS.items())
        if (found := _KAFKAS_DEFAULT.search(setting.doc)) is not None
    ]
    return _table(("Setting", "Here", "Kafka"), rows)


def without_effect() -> str:
    """Settings that are read so that Kafka's files can be used, and do nothing."""
    names = [name for name, setting in sorted(BROKER_SETTINGS.items()) if _ACCEPTED_ONLY in setting.doc]
    return "".join(f"`{name}`\n" for name in names)


def clients() -> str:
    """The clients that write and read in all their codecs, and take part in groups of two through a rebalance."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    versions = {**pinned, "kafkajs": kafkajs.VERSION, "java": KAFKA_VERSION, "kcat": "as the system has it"}
    in_groups = {client.name for client in EVERY_CLIENT}
    rows = [
        (
            client.name,
            versions[client.name],
            "all"
            if all(knows(client, codec) for codec in CODECS)
            else ", ".join(filter(partial(knows, client), CODECS)),
            "classic, consumer (KIP-848)" if f"{client.name}-kip-848" in in_groups else "classic",
        )
        for client in CLIENTS
        if client.name in in_groups
    ]
    return _table(("Client", "Version", "Codecs", "Groups"), rows)


def tools() -> str:
    """Apache Kafka's programs that a test runs."""
    text = "".join(path.read_text() for path in INTEROP.rglob("*.py"))
    unused = [name for name in MAIN_CLASSES if text.count(f'"{name}"') < 2]  # once where it is named
    assert not unused, "no test runs them"
    return "".join(f"`{name}`\n" for name in sorted(MAIN_CLASSES))


def suite() -> str:
    """kafka-python's own tests: how many pass, and which do not run."""
    not_run, skipped, collected = KAFKA_PYTHON.left_out, KAFKA_PYTHON.skipped, KAFKA_PYTHON.collected
    passed = collected - len(not_run) - len(skipped)
    head = f"Of {collected} tests {passed} pass. Skipped by themselves: {len(skipped)}; left out: {len(not_run)}:\n\n"
    reasons = [*not_run.items(), *((name, f"skips itself: {why}") for name, why in skipped.items())]
    rows = dict.fromkeys((f"`{name.partition('[')[0]}`", why) for name, why in reasons)  # with any parameter
    return head + _table(("Test", "Why not"), rows)


def go_clients() -> str:
    """The tests of Go clients that run against a node."""
    rows = [
        (module.path.rpartition("/")[2], module.version, f"`{module.test}`", ".".join(map(str, module.oldest_go)))
        for module in GO_MODULES
    ]
    return _table(("Client", "Version", "Test", "Go, from"), rows)


GENERATED: dict[str, Callable[[], str]] = {
    "apis": apis,
    "other defaults": other_defaults,
    "without effect": without_effect,
    "clients": clients,
    "tools": tools,
    "suite": suite,
    "Go clients": go_clients,
}
MEASURED: dict[str, Callable[[], str]] = {
    "differences": lambda: table(DIFFERENCES),
    "differences of access": lambda: table(ACCESS),
    "differences of clusters": lambda: table(REPLICATED),
    "differences of members": lambda: table(MEMBERS),
    "differences of transactions": lambda: table(TRANSACTIONS),
    "differences of wrong batches": lambda: table((*WRONG_BATCHES, *WRONG_BATCHES_OF_TOPICS)),
}


def test_the_tables_are_what_the_code_says() -> None:
    check_generated(PAGE, GENERATED)


def test_the_appendix_has_every_difference_that_tests_list() -> None:
    check_generated(APPENDIX, MEASURED)


def test_every_error_that_is_named_has_its_number() -> None:
    named = re.findall(r"\b([A-Z][A-Z_]{5,}) \((-?\d+)\)", PAGE.read_text() + APPENDIX.read_text())
    assert named
    for name, number in named:
        assert ErrorCode[name] == int(number), name


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"docs/decisions/(\d{4}[\w-]*\.md)", PAGE.read_text() + APPENDIX.read_text())))
)
def test_every_decision_that_is_named_is_there(name: str) -> None:
    assert (PAGE.parent / "decisions" / name).is_file()
