"""Proposals of this broker to change partitions: collected for a few milliseconds, and sent in one command.

One command is under way at a time. If an answer requires another proposal, the owner collects that proposal again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tailrace.metadata.commands import AlterPartition, InSyncChange, PartitionsAltered
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.server.callbacks import run_slice
from tailrace.server.ports import Clock, Controller

T = TypeVar("T")

Outcomes = list[PartitionState | KafkaError]
"""Outcomes in the order of the proposals: the state of the partition after the decision, or the reason of a refusal."""


class Proposals(Generic[T]):
    """The proposals of a single owner; `T` is the type of a proposal."""

    def __init__(
        self,
        broker_id: BrokerId,
        controller: Controller,
        clock: Clock,
        *,
        collect: Callable[[list[T]], Iterator[None]],
        change: Callable[[T], InSyncChange],
        on_outcomes: Callable[[list[T], Outcomes], None],
    ) -> None:
        """`collect` adds the due proposals to its list, in steps; `change` makes the command's entry for a proposal."""
        self._broker_id = broker_id
        self._controller = controller
        self._clock = clock
        self._collect = collect
        self._change = change
        self._on_outcomes = on_outcomes
        self._is_busy = self._is_planned = False
        self.is_stopped = False

    def stop(self) -> None:
        """Stop proposing."""
        self.is_stopped = True

    def plan(self) -> None:
        """Collect proposals after this turn. While a command is under way nothing is planned: the owner has to call
        again when it gets the outcomes."""
        if not (self._is_busy or self._is_planned or self.is_stopped):
            self._is_planned = True
            self._clock.call_soon(self._propose)

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 if the image has none."""
        registered = self._controller.image.brokers.get(self._broker_id)
        return -1 if registered is None else registered.broker_epoch

    def _propose(self) -> None:
        self._is_planned = False
        if self._is_busy or self.is_stopped:
            return
        proposed: list[T] = []
        is_all = run_slice(self._collect(proposed), self._clock)
        if proposed:
            self._is_busy = True
            changes = tuple(map(self._change, proposed))
            command = AlterPartition(broker_id=self._broker_id, broker_epoch=self.broker_epoch, changes=changes)
            self._controller.submit(command, lambda answer: self._answered(proposed, answer))
        elif not is_all:
            self.plan()

    def _answered(self, proposed: list[T], answer: Any) -> None:
        self._is_busy = False
        if isinstance(answer, PartitionsAltered):
            outcomes: Outcomes = [outcome.result for outcome in answer.outcomes]
        else:
            assert isinstance(answer, KafkaError), f"{answer} is no answer to AlterPartition"
            outcomes = [answer] * len(proposed)
        self._on_outcomes(proposed, outcomes)


def codes_of(outcomes: Outcomes) -> Counter[str]:
    """The number of outcomes by their error codes; a change that was made counts under NONE."""
    return Counter((outcome.code if isinstance(outcome, KafkaError) else ErrorCode.NONE).name for outcome in outcomes)


def shown(counts: Counter[str]) -> str:
    """The counts in a log line."""
    return ",".join(f"{name}:{count}" for name, count in sorted(counts.items()))
