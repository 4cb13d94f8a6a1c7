"""The blocking and the asyncio clients have the same calls: names, parameters, defaults, results, docstrings."""

import inspect
from typing import Any

import pytest

import tailrace
from tailrace import aio

FACES = [(getattr(aio, name), getattr(tailrace, name)) for name in aio.__all__]

OF_ONE_FACE = {
    # aiokafka's calls; and the blocking face uses some parts of the asyncio client
    "Admin": {"start", "stop"},
    "Consumer": {
        "start",
        "stop",
        "abandon",
        "finish_dropped",
        "next_ahead",
        "poll_ahead",
        "withhold_unpassed",
        "abandon_at_exit",
    },
    "Producer": {
        "check_ready",
        "checked",
        "enqueue",
        "settle",
        "situation",
        "start",
        "stop",
        "call_in_order",
        "close_at_exit",
    },
    "RangedFetch": {"arrow"},  # pyarrow's readers are plain iterators
}
"""Public names of a single face."""

OF_ANOTHER_KIND = {
    "Consumer.close": "a call of the asyncio client can be cancelled",
    "Consumer.subscribe": "a listener of the blocking client runs in a thread",
    "KeyedConsumer.close": "the facade has the call for every client",
    "KeyedConsumer.run": "handlers run in threads, or on the caller's loop",
    "KeyedConsumer.stop": "before `run` the asyncio client has nothing to stop",
    "Producer.send": "a future of asyncio, or of a thread",
    "Producer.send_batch": "a future of asyncio, or of a thread",
    "Producer.transaction": "`async with`, or `with`",
    "RangedFetch.fetch_range": "an asynchronous iterator, or an iterator",
}
"""Calls whose docstrings or results differ, and why."""


def public(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


def parameters(call: Any) -> list[tuple[str, Any, Any, Any]]:
    """The parameters of a method, without the object."""
    _own, *rest = inspect.signature(call).parameters.values()
    return [(given.name, given.kind, given.default, given.annotation) for given in rest]


def outcome(call: Any) -> Any:
    return inspect.signature(call).return_annotation


CALLS = [
    pytest.param(asynchronous, blocking, name, id=f"{blocking.__name__}.{name}")
    for asynchronous, blocking in FACES
    for name in sorted({"__init__"} | public(asynchronous) & public(blocking))
]


@pytest.mark.parametrize(("asynchronous", "blocking"), FACES, ids=lambda client: client.__name__)
def test_both_faces_have_the_same_names(asynchronous: type, blocking: type) -> None:
    assert public(asynchronous) ^ public(blocking) == OF_ONE_FACE.get(blocking.__name__, set())


def differences(asynchronous: type, blocking: type, name: str) -> set[str]:
    """The parts of a call that differ between the faces."""
    first, second = inspect.getattr_static(asynchronous, name), inspect.getattr_static(blocking, name)
    if isinstance(first, property) or isinstance(second, property):
        if type(first) is not type(second):
            return {"kind"}
        first, second = first.fget, second.fget
    else:
        first, second = getattr(asynchronous, name), getattr(blocking, name)
    found = set()
    if parameters(first) != parameters(second):
        found.add("parameters")
    if name == "__init__":
        return found
    if outcome(first) != outcome(second):
        found.add("result")
    if inspect.getdoc(first) != inspect.getdoc(second):
        found.add("docstring")
    return found


@pytest.mark.parametrize(("asynchronous", "blocking", "name"), CALLS)
def test_a_call_is_the_same_in_both_faces(asynchronous: type, blocking: type, name: str) -> None:
    found = differences(asynchronous, blocking, name)
    if f"{blocking.__name__}.{name}" in OF_ANOTHER_KIND:
        assert found, "it is the same now: drop it from the table"
        assert found <= {"docstring", "result"}
    else:
        assert found == set()


def test_the_table_names_calls_that_exist() -> None:
    assert set(OF_ANOTHER_KIND) <= {str(call.id) for call in CALLS}
    assert len(CALLS) > 100


@pytest.mark.parametrize(("asynchronous", "blocking"), FACES, ids=lambda client: client.__name__)
def test_help_on_a_blocking_client_describes_the_client(asynchronous: type, blocking: type) -> None:
    text = inspect.getdoc(blocking) or ""
    assert "Async" not in text
    assert "async with" not in text
    first = (inspect.getdoc(asynchronous) or "").split("\n\n")[-1]
    assert first.replace("async with", "with") in text


def test_a_difference_of_faces_is_found() -> None:
    class OriginalFace:
        async def fetch(self, partition: int, *, timeout_ms: int = 5) -> int:
            """Fetch."""
            return partition + timeout_ms

    class RenamedFace:
        def fetch(self, number: int, *, timeout_ms: int = 5) -> int:
            """Fetch."""
            return number + timeout_ms

    class SoonerFace:
        def fetch(self, partition: int, *, timeout_ms: int = 4) -> int:
            """Fetch a record."""
            return partition + timeout_ms

    assert differences(OriginalFace, OriginalFace, "fetch") == set()
    assert differences(OriginalFace, RenamedFace, "fetch") == {"parameters"}
    assert differences(OriginalFace, SoonerFace, "fetch") == {"parameters", "docstring"}
