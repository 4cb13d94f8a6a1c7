"""Runs a script on two nodes and says in which fields their answers differ."""

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from interop.differential.peer import CLOSED, Peer
from interop.differential.script import Ask, Hangup, Receive, Repeat, Script, Send, SendBytes, Step
from interop.differential.tree import Names, Tree, tree_of
from tailrace.protocol.registry import api_of

ABSENT = "absent"
PRESENT = "present"
_SETTLED_S = 30
"""The time a node may take to keep a promise."""
_AGREE_S = 30
"""The time two nodes may take until their reads agree: Kafka shows changes a moment later."""
_AGREE_QUESTIONS = 20
"""The least number of requests: the machine may have stood still for all that time."""
_AGREE_LATER_S = 3
"""The same once the nodes did not agree for so many steps: the test fails anyway, and shall not take hours."""
_MANY_STEPS = 2
_PAUSE_S = 0.01
_READING = re.compile(r"Describe|^List|^Find|^Metadata|^Fetch|^OffsetF|^ApiVersions")
_KEY = re.compile(r"(?<!configs)(?<!api_keys)(?<!features)\[[^\[\]]*\]")


@dataclass(frozen=True)
class Finding:
    """A field in which the answers to a step differ."""

    step: str
    api: str
    version: int
    path: str
    ours: object
    theirs: object
    error: str = ""
    """The error code that stands beside the field in Apache Kafka's answer, or the empty string."""

    @property
    def field(self) -> str:
        """The path without array keys, `topics.partitions.error_code`; settings, APIs and features keep theirs."""
        return _KEY.sub("", self.path)

    def __str__(self) -> str:
        values = f"{self.ours!r} here, {self.theirs!r} by Apache Kafka"
        return f"{self.api} v{self.version}, {self.step!r}: {self.path}: {values}"


@dataclass
class Comparison:
    """The findings of a run."""

    steps: int = 0
    fields: int = 0
    findings: list[Finding] = field(default_factory=list)
    asked: set[tuple[str, int]] = field(default_factory=set)
    """The APIs and versions that were asked."""


class Runner:
    """Takes two nodes, or the brokers of two clusters, through a script, step by step.

    `is_known` tells which differences are listed. `controllers`: the addresses for steps `@controller`, of both.
    """

    def __init__(
        self,
        ours: Sequence[str],
        theirs: Sequence[str],
        is_known: Callable[[Finding], bool],
        *,
        controllers: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self._peers = (
            Peer("Tailrace", ours, controllers[0]),
            Peer("Apache Kafka", theirs, controllers[1]),
        )
        self._names = tuple(Names(peer.addresses, peer.answers.topic_ids) for peer in self._peers)
        self._is_known = is_known
        self._awaited: dict[str, Send] = {}
        self._disagreed = 0
        self.comparison = Comparison()

    def run(self, script: Script) -> Comparison:
        for step in script:
            try:
                self._take(step)
            except Exception as fault:
                fault.add_note(f"in step {step}")
                raise
        return self.comparison

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _take(self, step: Step) -> None:
        match step:
            case Ask(is_compared=False):
                for peer in self._peers:
                    peer.answers[step.name] = self._answer(peer, step)
            case Ask():
                self._ask(step)
            case Send():
                self._awaited[step.name] = step
                for peer in self._peers:
                    peer.send(step.name, step.connection, step.version, step.build)
            case Receive():
                sent = self._awaited.pop(step.name)
                request = sent.build(self._peers[0].answers)
                answers = [peer.receive(step.name) for peer in self._peers]
                self._conclude(step.name, api_of(type(request)).name, sent.version, answers)
            case SendBytes():
                answers = [peer.send_bytes(step.connection, step.payload) for peer in self._peers]
                self._conclude(step.name, "any", 0, answers)
            case Repeat():
                last = [peer.repeat(step.connection, step.version, step.builds, step.times) for peer in self._peers]
                for name, build in step.builds.items():
                    api = api_of(type(build(self._peers[0].answers))).name
                    self._conclude(name, api, step.version, [answers[name] for answers in last])
            case Hangup():
                for peer in self._peers:
                    peer.hang_up(step.connection)

    def _ask(self, step: Ask) -> None:
        api = api_of(type(step.build(self._peers[0].answers))).name
        deadline = time.monotonic() + (_AGREE_S if self._disagreed < _MANY_STEPS else _AGREE_LATER_S)
        for asked in itertools.count(1):
            answers = [self._answer(peer, step) for peer in self._peers]
            found, fields = self._compare(step.name, api, step.version, answers)
            if all(map(self._is_known, found)):
                break
            is_repeatable = step.is_repeatable and _READING.match(api) is not None
            if not is_repeatable or (asked >= _AGREE_QUESTIONS and time.monotonic() >= deadline):
                self._disagreed += 1
                break
            time.sleep(_PAUSE_S)
        self._record(step.name, api, step.version, answers, found, fields)

    def _answer(self, peer: Peer, step: Ask) -> Any:
        deadline = time.monotonic() + _SETTLED_S
        while True:
            answer = peer.ask(step.connection, step.version, step.build, expect_answer=step.expect_answer)
            if step.until is None or (answer != CLOSED and step.until(answer)):
                return answer
            assert time.monotonic() < deadline, f"{step.name!r} at {peer.name} never came about: {answer}"
            time.sleep(_PAUSE_S)

    def _conclude(self, name: str, api: str, version: int, answers: list[Any]) -> None:
        self._record(name, api, version, answers, *self._compare(name, api, version, answers))

    def _record(self, name: str, api: str, version: int, answers: list[Any], found: list[Finding], fields: int) -> None:
        for peer, answer in zip(self._peers, answers, strict=True):
            peer.answers[name] = answer
        self.comparison.steps += 1
        self.comparison.fields += fields
        self.comparison.findings += found
        self.comparison.asked.add((api, version))

    def _compare(self, name: str, api: str, version: int, answers: list[Any]) -> tuple[list[Finding], int]:
        if any(isinstance(answer, str) for answer in answers):
            trees: list[Tree] = [{"answer": _outcome(answer)} for answer in answers]
        else:
            trees = [self._tree(names, answer) for names, answer in zip(self._names, answers, strict=True)]
        ours, theirs = trees
        return findings_of(name, api, version, ours, theirs)

    def _tree(self, names: Names, answer: Any) -> Tree:
        if isinstance(answer, bytes):
            return {"answer": answer.hex()}
        names.learn_topics(answer)
        return tree_of(answer, names)


def findings_of(step: str, api: str, version: int, ours: Tree, theirs: Tree) -> tuple[list[Finding], int]:
    """The findings in two trees, and the number of fields that were compared."""
    compared = list(_leaves(ours, theirs))
    codes = {path: str(code) for path, _, code in compared if path.endswith("error_code")}
    found = [
        Finding(
            step, api, version, path, our_value, their_value, codes.get(f"{path.rpartition('.')[0]}.error_code", "")
        )
        for path, our_value, their_value in compared
        if our_value != their_value
    ]
    return found, len(compared)


def _outcome(answer: Any) -> str:
    return answer if isinstance(answer, str) else "an answer"


def _leaves(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Every field with both values. A value that only one side has is one field, however much is in it."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        yield path, ours, theirs
        return
    for key in ours.keys() | theirs.keys():
        below = path + key if key.startswith("[") or not path else f"{path}.{key}"
        if key in ours and key in theirs:
            yield from _leaves(ours[key], theirs[key], below)
        elif isinstance(ours.get(key, theirs.get(key)), dict):
            yield below, PRESENT if key in ours else ABSENT, PRESENT if key in theirs else ABSENT
        else:
            yield below, ours.get(key, ABSENT), theirs.get(key, ABSENT)
