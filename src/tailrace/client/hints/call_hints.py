"""The texts of wrong calls of clients: the class that the user has typed, the right form, and names near by.

A call that Python refuses (an unknown keyword, too many arguments) is explained after the refusal, so that right calls
cost a frame and no check. A call of another package's client is a hidden attribute that raises AttributeError with the
call that takes its place: `__getattr__` would slow down each attribute of the client.
"""

import inspect
from abc import ABCMeta
from asyncio import coroutines
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, cast

from tailrace.model.settings import nearest

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_TROUBLE: Final = "the property `trouble` has the present fault"
_TOPICS: Final = "Admin.list_topics() lists them"
_CLUSTER: Final = "Admin.describe_cluster().cluster_id has it"

_ABSENT: Final[Mapping[str, Mapping[str, str]]] = {
    "Producer": {
        "produce": "send(topic, value, key) hands a record over, and returns the future of its place",
        "write": "send(topic, value, key) hands a record over, and returns the future of its place",
        "poll": "a producer needs no poll: a background thread sends, and futures have add_done_callback()",
        "partitions_for": "partition_count(topic) returns the number of partitions",
        "list_topics": _TOPICS,
        "bootstrap_connected": _TROUBLE,
        "purge": "close(timeout=0) gives up the records that are not written",
        "metrics": "only consumers have metrics()",
        "cluster_id": _CLUSTER,
    },
    "Consumer": {
        "commit_async": "commit() waits for the answer; or leave enable_auto_commit on",
        "commit_sync": "commit() waits for the answer",
        "consume": "poll(timeout, max_records=...) returns a list of records",
        "get": "getone() returns a record, poll(timeout) a list",
        "topics": _TOPICS,
        "list_topics": _TOPICS,
        "highwater": "end_offsets([partition]) returns it, and metrics() has records-lag",
        "get_watermark_offsets": "beginning_offsets([partition]) and end_offsets([partition]) return them",
        "store_offsets": "auto commits cover the records that were passed; commit({partition: offset}) commits others",
        "incremental_assign": "assign(partitions) takes all partitions at once",
        "incremental_unassign": "assign(partitions) takes all partitions at once",
        "unassign": "assign([]) reads nothing",
        "seek_to_committed": "seek(partition, offset) moves to an offset of committed([partition])",
        "consumer_group_metadata": "group_metadata() returns it",
        "memberid": "group_metadata().member_id has it",
        "bootstrap_connected": _TROUBLE,
        "cluster_id": _CLUSTER,
        "lag": "metrics() has records-lag, and Admin.group_lag(group) the lag of a group",
        "group_lag": "Admin.group_lag(group) returns it",
    },
    "KeyedConsumer": {
        "poll": "run(handler) calls the handler with each record",
        "subscribe": "the topics are the setting topics",
        "start": "run(handler) begins",
        "commit": "done records are committed every auto_commit_interval_ms",
    },
    "Admin": {
        "create_topic": "create_topics([NewTopic('orders', partitions=3)]) makes topics",
        "delete_topic": "delete_topics(['orders']) deletes topics",
        "describe_topic": "describe_topics(['orders']) describes topics",
        "describe_group": "describe_groups(['billing']) describes groups",
        "list_consumer_groups": "list_groups() lists them",
        "describe_consumer_groups": "describe_groups([...]) describes them",
        "delete_consumer_groups": "delete_groups([...]) deletes them",
        "list_group_offsets": "group_offsets(group) returns them",
        "list_consumer_group_offsets": "group_offsets(group) returns them",
        "alter_consumer_group_offsets": "commit_offsets(group, offsets) sets them",
        "alter_group_offsets": "commit_offsets(group, offsets) sets them",
        "reset_group_offsets": "reset_offsets(group, ...) moves them",
        "delete_group_offsets": "delete_offsets(group, partitions) deletes them",
        "incremental_alter_configs": "alter_configs(kind, name, {...}) changes the named settings alone",
        "list_partition_offsets": "list_offsets({partition: ...}) returns them",
        "describe_metadata_quorum": "describe_quorum() describes it",
        "describe_transactions": "describe_transaction(transactional_id) describes a transaction",
        "find_coordinator": "describe_groups([group]) has the coordinator",
        "lag": "group_lag(group) returns it",
    },
    "RangedFetch": {
        "fetch": "fetch_range(partition, start, end) returns the batches of a range",
        "poll": "fetch_range(partition, start, end) returns the batches of a range",
        "read": "fetch_range(partition, start, end) returns the batches of a range",
    },
}
"""Calls of other clients by the client, with the call that takes their place."""

_ARGUMENTS: Final[Mapping[str, str]] = {
    "on_delivery": "the future that send() returns takes callbacks by add_done_callback()",
    "callback": "the future that send() returns takes callbacks by add_done_callback()",
    "num_messages": "did you mean 'max_records'?",
    "max_poll_records": "did you mean 'max_records'?",
    "update_offsets": "a record counts as processed at the next poll",
    "asynchronous": "commit() waits for the answer",
    "message": "commit({(record.topic, record.partition): record.offset + 1}) commits a record",
    "on_assign": "listener=... takes a ConsumerRebalanceListener",
    "on_revoke": "listener=... takes a ConsumerRebalanceListener",
    "on_lost": "listener=... takes a ConsumerRebalanceListener",
    "autocommit": "close() commits by the setting enable_auto_commit",
    "validate_only": "this call has no dry run",
    "timeout_s": "did you mean 'timeout'? It is in seconds",
}
"""Arguments of other clients that the calls lack."""


class AbsentName:
    """The place of a name that a class lacks: reading it raises AttributeError. `dir` and `help` do not show it."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(self._text, name=self._name, obj=owner if instance is None else instance)


class ClientType(ABCMeta):
    """The class of classes of clients: `dir` leaves out the places of calls that a client lacks."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not isinstance(inspect.getattr_static(cls, name), AbsentName)]


def hinted(client: C) -> C:
    """The decorator of a client's class: wrong calls and absent calls are explained under the name of the class."""
    name = spoken_name(client)
    for call in [call for call in dir(client) if not call.startswith("_")]:
        plain = inspect.getattr_static(client, call)
        if inspect.isfunction(plain):
            setattr(client, call, hinted_call(plain, name))
    for call, hint in _ABSENT.get(name, {}).items():
        if not hasattr(client, call):
            setattr(client, call, AbsentName(call, f"{name} has no call {call!r}; {hint}"))
    return client


def spoken_name(client: type) -> str:
    """The name by which users have the class: `tailrace.aio` has the asyncio clients without their prefix."""
    return client.__name__.removeprefix("Async")


def hinted_call(method: F, client: str) -> F:
    """The method; a call that Python refuses has a TypeError with the right form."""

    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return method(*args, **keywords)
        except TypeError:
            text = _refusal(method, client, args, keywords)
            if not text:
                raise  # by the method itself
        raise TypeError(text)

    return cast("F", marked_coroutine(call) if inspect.iscoroutinefunction(method) else call)


def marked_coroutine(call: F) -> F:
    """The plain function that returns a coroutine, marked: mocks of the clients ask for coroutine functions."""
    mark = getattr(inspect, "markcoroutinefunction", None)  # Python 3.12
    if mark is not None:
        return cast("F", mark(call))
    vars(call)["_is_coroutine"] = getattr(coroutines, "_is_coroutine")  # noqa: B009
    return call


def _refusal(method: Callable[..., Any], client: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """The text about arguments that the method does not take; empty if it takes them."""
    signature = inspect.signature(method)
    _own, *parameters = signature.parameters.values()
    plain = [given.replace(annotation=inspect.Parameter.empty) for given in parameters]
    name = method.__name__
    form = f"the call is {name}{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}"
    known = [given.name for given in plain]
    strangers = [keyword for keyword in keywords if keyword not in known]
    if strangers and not any(given.kind is given.VAR_KEYWORD for given in plain):
        near = nearest(strangers[0], known)
        hint = _ARGUMENTS.get(strangers[0]) or (f"did you mean {near!r}?" if near else "")
        return f"{client}.{name}() has no argument {strangers[0]!r}; {f'{hint} ' if hint else ''}({form})"
    try:
        signature.bind(*args, **keywords)
    except TypeError as wrong:
        return f"{client}.{name}(): {wrong}; {form}"
    return ""
