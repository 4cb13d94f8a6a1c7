"""The exchanges of our own members with their coordinator, read at the connection, by the step in which each was asked.

A heartbeat without news is left out: how many there are depends on the pace of the machine. A heartbeat is without news
if it names its member and no partition, and the answer has the same epoch and no assignment. An empty list of
partitions is compared as a list that is left out: the pace decides too which of both heartbeats gets the news. The ids
of members count up in the order in which members start: a coordinator may assign partitions by the order of ids.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple
from unittest import mock
from uuid import UUID

from interop.differential.comparison import ABSENT, PRESENT, Comparison, Finding, findings_of
from interop.differential.tree import Names, Tree, tree_of
from tailrace.client.group import consumer_host
from tailrace.net.connection import ANY_VERSION, Connection
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.messages.metadata import MetadataResponse
from tailrace.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tailrace.protocol.registry import api_of
from tailrace.protocol.schema import decode, encode_bytes

_READ: Final = (ConsumerGroupHeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest)
_EPOCHS: Final = ("member_epoch", "generation_id_or_member_epoch")
NO_ANSWER: Final = "no answer"


class ToldExchange(NamedTuple):
    """An exchange as it is compared."""

    api: str
    version: int
    tree: Tree


@dataclass
class MemberExchange:
    """A request of a member, and its answer."""

    step: str
    member: str
    """The client id."""
    version: int
    request: Any
    answer: Any = NO_ANSWER
    is_cancelled: bool = False

    @property
    def api(self) -> str:
        return api_of(type(self.request)).name

    @property
    def is_heartbeat(self) -> bool:
        return isinstance(self.request, ConsumerGroupHeartbeatRequest)

    @property
    def is_idle(self) -> bool:
        """Whether the exchange is a heartbeat without news."""
        if not self.is_heartbeat or self.request.member_epoch <= 0:
            return False
        if self.request.subscribed_topic_names is not None or self.request.topic_partitions:
            return False
        if self.answer == NO_ANSWER:
            return self.is_cancelled  # the member has gone
        is_same = self.answer.member_epoch == self.request.member_epoch
        return bool(is_same and self.answer.error_code == 0 and self.answer.assignment is None)

    def says_the_same_as(self, other: "MemberExchange") -> bool:
        return (self.request, self.answer) == (other.request, other.answer)


class MemberRecord:
    """The requests of the members at a server, and their answers."""

    def __init__(self, address: str) -> None:
        self.step = ""
        """The step that the conversation takes now."""
        self._exchanges: list[MemberExchange] = []
        self._topic_ids: dict[str, bytes] = {}
        self._names = Names([address], self._topic_ids)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read all connections that are used meanwhile."""
        send = Connection.send

        def read(
            connection: Connection,
            request: object,
            response_type: type[Any],
            *,
            timeout_ms: int,
            max_version: int = ANY_VERSION,
        ) -> "asyncio.Future[Any]":
            answer = send(connection, request, response_type, timeout_ms=timeout_ms, max_version=max_version)
            if isinstance(request, _READ):
                version = connection.version_of(type(request), max_version)
                exchange = MemberExchange(self.step, connection._client_id, version, _as_sent(request, version))
                self.add(exchange)
                answer.add_done_callback(lambda done: _note(exchange, done))
            elif response_type is MetadataResponse:
                answer.add_done_callback(self._learn)
            return answer

        ids = (UUID(int=number) for number in count(1))
        with mock.patch.object(Connection, "send", read), mock.patch.object(consumer_host, "uuid4", side_effect=ids):
            yield

    def add(self, exchange: MemberExchange) -> None:
        self._exchanges.append(exchange)

    def _learn(self, done: "asyncio.Future[Any]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._names.learn_topics(done.result())

    def is_quiet(self, members: Iterable[str], beats: int = 3) -> bool:
        """Whether the last heartbeats of each of these members were without news."""
        exchanges = list(self._exchanges)
        last = {name: [each for each in exchanges if each.member == name][-beats:] for name in members}
        return all(len(found) == beats and all(each.is_idle for each in found) for found in last.values())

    def has(self, member: str, **fields: object) -> bool:
        """Whether this step has an answered heartbeat of the member with these fields in the request."""
        return any(
            each.is_heartbeat
            and (each.step, each.member) == (self.step, member)
            and each.answer != NO_ANSWER
            and all(getattr(each.request, name) == value for name, value in fields.items())
            for each in list(self._exchanges)
        )

    def refusals(self, member: str) -> set[int]:
        """The error codes of the answers to the member's heartbeats in this step."""
        return {
            each.answer.error_code
            for each in list(self._exchanges)
            if each.is_heartbeat and (each.step, each.member) == (self.step, member) and each.answer != NO_ANSWER
        }

    def told(self) -> dict[str, ToldExchange]:
        """The exchanges with news, by step, member, API and number."""
        news: dict[tuple[str, str], list[MemberExchange]] = defaultdict(list)
        for each in self._exchanges:
            told = news[each.step, each.member]
            if not each.is_idle and not (told and told[-1].says_the_same_as(each)):
                told.append(each)
        found: dict[str, ToldExchange] = {}
        for (step, member), told in news.items():
            counts: dict[str, int] = defaultdict(int)
            for each in told:
                counts[each.api] += 1
                found[f"{step}: {member}, {each.api} {counts[each.api]}"] = ToldExchange(
                    each.api, each.version, self._tree(each)
                )
        return _with_epochs_in_order(found)

    def _tree(self, exchange: MemberExchange) -> Tree:
        answer, asked = exchange.answer, tree_of(exchange.request, self._names)
        if exchange.is_heartbeat and exchange.request.subscribed_topic_names is None:
            asked["topic_partitions"] = asked["topic_partitions"] or None
        return {
            "version": exchange.version,
            "asked": asked,
            "answer": answer if isinstance(answer, str) else tree_of(answer, self._names),
        }


def _as_sent(request: Any, version: int) -> Any:
    """The request with what this version has on the wire."""
    return decode(type(request), version, encode_bytes(request, version))


def _note(exchange: MemberExchange, done: "asyncio.Future[Any]") -> None:
    if done.cancelled():
        exchange.is_cancelled = True
    elif done.exception() is None:
        exchange.answer = done.result()


def compared(ours: Mapping[str, ToldExchange], theirs: Mapping[str, ToldExchange]) -> Comparison:
    """The findings in the exchanges with both servers."""
    result = Comparison()
    for name in dict.fromkeys((*ours, *theirs)):
        here, there = ours.get(name), theirs.get(name)
        if here is not None and there is not None:
            found, fields = findings_of(name, here.api, here.version, here.tree, there.tree)
        else:
            only = here or there
            assert only is not None
            values = (PRESENT, ABSENT) if there is None else (ABSENT, PRESENT)
            found, fields = [Finding(name, only.api, only.version, "exchange", *values)], 1
        result.steps += 1
        result.fields += fields
        result.findings += found
    return result


def _with_epochs_in_order(told: Mapping[str, ToldExchange]) -> dict[str, ToldExchange]:
    """The exchanges with the epochs of a step by their order: the numbers themselves are the coordinator's affair."""
    epochs: dict[str, set[int]] = defaultdict(set)
    for name, exchange in told.items():
        epochs[_step(name)].update(_epochs(exchange.tree))
    ordered = {
        step: {epoch: f"<epoch {place}>" for place, epoch in enumerate(sorted(found), 1)}
        for step, found in epochs.items()
    }
    return {
        name: exchange._replace(tree=_renamed(exchange.tree, ordered[_step(name)])) for name, exchange in told.items()
    }


def _step(name: str) -> str:
    return name.rpartition(":")[0]


def _epochs(tree: Tree) -> Iterator[int]:
    for field, value in tree.items():
        if isinstance(value, dict):
            yield from _epochs(value)
        elif field in _EPOCHS and value > 0:
            yield value


def _renamed(tree: Tree, epochs: Mapping[int, str]) -> Tree:
    renamed: Tree = {}
    for field, value in tree.items():
        if isinstance(value, dict):
            renamed[field] = _renamed(value, epochs)
        else:
            renamed[field] = epochs.get(value, value) if field in _EPOCHS else value
    return renamed
