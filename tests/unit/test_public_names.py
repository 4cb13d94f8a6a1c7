"""`tailrace` and `tailrace.aio`: the names that users import, and that importing the package loads next to nothing."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tailrace
from tailrace import aio, client, storage
from tailrace.client import blocking, consumer, producer
from tailrace.client.admin import admin
from tailrace.client.keyed import keyed_consumer
from tailrace.client.reading import ranged_fetch
from tailrace.model.errors import KafkaError


def test_importing_the_package_loads_neither_asyncio_nor_a_module_but_that_of_late_names() -> None:
    script = "import sys, tailrace; print(*sys.modules)"
    path = str(Path(tailrace.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    loaded = run.stdout.split()
    assert "tailrace" in loaded
    own = {name for name in loaded if name == "asyncio" or name.startswith("tailrace.")}
    assert own == {"tailrace.model", "tailrace.model.late_names"}


def test_every_name_is_there_and_listed() -> None:
    assert set(blocking.__all__) < set(tailrace.__all__)
    assert set(tailrace.__all__) <= set(dir(tailrace))
    for name in blocking.__all__:
        assert getattr(tailrace, name) is getattr(blocking, name)


def test_the_names_for_a_selector_load_no_client() -> None:
    script = (
        "import sys; from tailrace import ReplicaSelector, RackAwareReplicaSelector, PartitionView; print(*sys.modules)"
    )
    path = str(Path(tailrace.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    loaded = run.stdout.split()
    assert "tailrace.replication.replica_selector" in loaded
    assert [name for name in loaded if name == "asyncio" or name.startswith("tailrace.client")] == []


@pytest.mark.parametrize("package", [tailrace, blocking], ids=["tailrace", "blocking"])
def test_type_checkers_see_every_name(package: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(package))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert set(seen) == set(package.__all__) <= set(dir(package))
    for name, module in seen.items():
        assert module is not None
        found = getattr(package, name)  # it is imported now
        assert getattr(sys.modules[module], name) is found


@pytest.mark.parametrize("package", [tailrace, blocking, storage], ids=lambda package: package.__name__)
def test_a_name_that_is_not_there_is_an_attribute_error(package: Any) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Produzer'"):
        _ = package.Produzer


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "from tailrace import AsyncConsumer",
            "'tailrace': tailrace has no name 'AsyncConsumer'; the asyncio client is tailrace.aio.Consumer",
        ),
        ("from tailrace import AIOKafkaProducer", "the asyncio client is tailrace.aio.Producer"),
        ("from tailrace import KafkaConsumer", "the blocking client is tailrace.Consumer"),
        ("from tailrace import Produzer", "did you mean 'Producer'?"),
        ("from tailrace import Cluster", "it is tailrace.testing.Cluster"),
        ("from tailrace.aio import AsyncProducer", "the asyncio client is tailrace.aio.Producer"),
        ("from tailrace.aio import KafkaError", "tailrace.aio has no name 'KafkaError'; it is tailrace.KafkaError"),
        ("from tailrace.aio import Consumers", "did you mean 'Consumer'?"),
    ],
)
def test_an_import_of_a_name_that_is_not_there_says_which_name_is(statement: str, text: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement, {"__name__": "program"})
    assert text in str(caught.value)


def test_a_look_for_a_name_that_is_not_there_is_no_import() -> None:
    assert not hasattr(tailrace, "AsyncConsumer")
    assert not hasattr(aio, "AsyncConsumer")
    with pytest.raises(AttributeError, match="the asyncio client is tailrace.aio.Consumer"):
        getattr(tailrace, "AsyncConsumer")  # noqa: B009


def test_a_module_of_the_package_is_imported_by_its_name() -> None:
    script = "from tailrace import aio, testing, json; print(aio.__name__, testing.__name__, json.__name__)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["tailrace.aio", "tailrace.testing", "tailrace.json"]


CLIENTS = "tailrace.client."


def clients_errors() -> dict[str, type[KafkaError]]:
    """The classes of errors that the modules of the clients define, by name."""
    modules = [importlib.import_module(module.name) for module in pkgutil.walk_packages(client.__path__, CLIENTS)]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, KafkaError) and value.__module__ == module.__name__
    }


def test_every_error_of_a_client_can_be_imported() -> None:
    errors = clients_errors()
    assert {"RecordNotWritten", "ClosedClient", "SinkRefusal"} < errors.keys()
    assert {name: getattr(tailrace, name, None) for name in errors} == errors
    assert errors.keys() <= {*tailrace.__all__}


def test_every_error_that_a_docstring_of_a_client_names_can_be_imported() -> None:
    named: set[str] = set()
    for face in (tailrace, aio):
        for name in aio.__all__:
            face_class = getattr(face, name)
            docs = [inspect.getdoc(getattr(face_class, member)) for member in dir(face_class)]
            named.update(re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", " ".join(filter(None, docs))))
    errors = {error.__name__ for error in descendants(KafkaError)}
    assert "AbortableTransactionError" in named
    assert {name for name in named & errors if not hasattr(tailrace, name)} == set()


def descendants(kind: type) -> set[type]:
    return {kind}.union(*map(descendants, kind.__subclasses__()))


@pytest.mark.parametrize(
    ("former", "current"),
    [("SharedConsumer", "KeyedConsumer"), ("SharedRecord", "KeyedRecord"), ("SharingMetrics", "KeyedMetrics")],
)
def test_former_names_of_the_keyed_consumer_are_deprecated(former: str, current: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"tailrace.{former} is deprecated: its name is {current}"):
        assert getattr(tailrace, former) is getattr(tailrace, current)
    assert former not in tailrace.__all__


def test_the_former_name_of_the_asyncio_keyed_consumer_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="its name is KeyedConsumer"):
        assert getattr(aio, "SharedConsumer") is aio.KeyedConsumer  # noqa: B009
    with pytest.raises(AttributeError, match="tailrace.aio"):
        getattr(aio, "SharedProducer")  # noqa: B009


def test_the_asyncio_clients() -> None:
    assert aio.__all__ == ("Admin", "Consumer", "KeyedConsumer", "Producer", "RangedFetch")
    assert aio.Admin is admin.AsyncAdmin
    assert aio.Consumer is consumer.AsyncConsumer
    assert aio.Producer is producer.AsyncProducer
    assert aio.RangedFetch is ranged_fetch.AsyncRangedFetch
    assert aio.KeyedConsumer is keyed_consumer.AsyncKeyedConsumer
