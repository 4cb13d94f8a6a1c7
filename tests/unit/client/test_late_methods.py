"""Methods and modules that come with their first use."""

import subprocess
import sys
from collections.abc import Callable
from types import FunctionType

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.blocking import Admin
from tailrace.client.late_methods import LateModule, late_method


def test_a_method_is_made_once_and_is_a_plain_function() -> None:
    made: list[str] = []

    def make() -> Callable[[object, int], tuple[str, int]]:
        made.append("call")

        def call(caller: object, more: int) -> tuple[str, int]:
            return type(caller).__name__, more

        return call

    class Caller:
        call = late_method(make)

    class Heir(Caller):
        pass

    assert made == []
    assert Heir().call(2) == ("Heir", 2)
    assert Caller().call(1) == ("Caller", 1)
    assert isinstance(Caller.call, FunctionType)
    assert Heir.call is Caller.call
    assert made == ["call"]


def test_a_name_that_a_module_lacks_is_an_attribute_error() -> None:
    late = LateModule("tailrace.client.names")
    assert late.several(["a"]) == ("a",)
    with pytest.raises(AttributeError, match="no attribute 'severall'"):
        _ = late.severall


@pytest.mark.parametrize("client", [Admin, AsyncAdmin])
def test_every_call_of_an_administrator_can_be_made(client: type) -> None:
    """A wrong name of a module or function would show at the first use only."""
    calls = [name for name in vars(client).keys() & {*dir(client)} if not name.startswith("_")]
    assert len(calls) > 50
    assert [name for name in calls if not isinstance(getattr(client, name), FunctionType)] == []


def test_a_client_imports_the_modules_of_its_calls_only() -> None:
    script = "import sys; from tailrace import Admin; Admin('h:1').list_topics; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "tailrace.client.admin.topics" in loaded
    others = {"tailrace.client.admin.groups", "tailrace.client.consumer", "tailrace.client.producer", "crc32c"}
    assert loaded & {*others, "tailrace.protocol.registry", "tailrace.protocol.records.batch"} == set()


def test_a_producer_and_a_consumer_do_not_import_every_message_of_the_protocol() -> None:
    script = "import sys; from tailrace import Consumer, Producer; Consumer, Producer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert {"tailrace.client.consumer", "tailrace.client.producer"} <= loaded
    assert loaded & {"tailrace.protocol.registry", "tailrace.protocol.messages.quorum"} == set()
