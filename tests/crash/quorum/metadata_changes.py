"""The possible states of topics that clients made, altered and deleted while the nodes of a cluster died.

A change that was acknowledged has happened. An unknown change may have happened, or happens later; no client asks for
another of that topic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SETTING = "delete.retention.ms"


class TopicState(NamedTuple):
    """A topic; without partitions, the topic does not exist."""

    partitions: int = 0
    value: str | None = None
    """The value of SETTING; None: not set."""


ABSENT = TopicState()


def after(state: TopicState, change: Mapping[str, Any]) -> TopicState:
    """The topic after the change; without effect if it does not fit."""
    match change["op"]:
        case "create":
            return TopicState(change["partitions"]) if state == ABSENT else state
        case "enlarge":
            return state._replace(partitions=change["partitions"]) if state.partitions > 0 else state
        case "set":
            return state._replace(value=change["value"]) if state != ABSENT else state
        case "delete":
            return ABSENT
    raise AssertionError(f"not a change: {change}")


@dataclass(slots=True)
class Expectation:
    """Possible states of the topics, by the answers to the clients."""

    possible: dict[str, set[TopicState]] = field(default_factory=dict)
    acknowledged: int = 0
    unknown: int = 0

    def add(self, history: Iterable[Mapping[str, Any]]) -> None:
        """The changes of one client, in its order. No two clients touch the same topic."""
        for change in history:
            states = self.possible.setdefault(change["topic"], {ABSENT})
            changed = {after(state, change) for state in states}
            if change["acknowledged"]:
                self.acknowledged += 1
                self.possible[change["topic"]] = changed
            else:
                self.unknown += 1
                self.possible[change["topic"]] = states | changed

    def broken(self, found: Mapping[str, TopicState]) -> list[str]:
        """Every topic that is not as it may be."""
        faults = []
        for topic, states in self.possible.items():
            state = found.get(topic, ABSENT)
            if state not in states:
                faults.append(f"{topic} is {state}, and should be {' or '.join(map(str, sorted(states, key=str)))}")
        faults += [f"{topic} was never made" for topic in found.keys() - self.possible.keys()]
        return faults
