"""Requests of producers while the markers of their last transaction are not written, and around their last epoch.

A partition of such a transaction is led by a broker that never answers, until its topic is deleted.
"""

from functools import partial

from interop.differential.catalogue.preparation import batch, created, produce
from interop.differential.catalogue.transactions.conversations import NEWER, OLDER, Generation, coordinators_of
from interop.differential.catalogue.transactions.silent_broker import deleted, led_by_it, silent_broker
from interop.differential.catalogue.transactions.transactional_requests import (
    Identity,
    adds,
    adds_offsets,
    commits,
    ends,
    initializes,
    is_complete,
    of,
)
from interop.differential.script import Answers, Repeat, Script, ask
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.messages.transactions import InitProducerIdRequest

FREE = "free"
"""A topic of one partition, for the next transactions."""
_TIMEOUT_MS = 600_000
_LAST_EPOCH = 2**15 - 2


def unfinished_ends() -> Script:
    """Every kind of end, and every request behind the end."""
    yield from created(FREE)
    yield from coordinators_of("any")  # whose topics are placed here, then
    yield from silent_broker()
    for generation in (OLDER, NEWER):
        for is_commit in (True, False):
            yield from _held_end(f"{generation.name}, held {_verb(is_commit)}", generation, is_commit=is_commit)
        name = f"{generation.name}, aborted by its own producer"
        yield from _fresh(name)
        yield from _own_transaction(name, generation)
    yield from _exhausted("handed over", "rotated", "exhausted, aborted by its own producer")
    yield from _hand_over("handed over")
    yield from _rotation("rotated")
    yield from _own_transaction_in_the_last_epoch("exhausted, aborted by its own producer")


def _verb(is_commit: bool) -> str:
    return "commit" if is_commit else "abort"


def _initialize(name: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_TIMEOUT_MS)


def _fresh(name: str) -> Script:
    """A producer with a first epoch: the step is called by its transactional id."""
    yield from coordinators_of(name)
    yield from ask(name, _initialize(name), 5, until=is_complete)


def _exhausted(*names: str) -> Script:
    """Producers in the last epochs of their ids: the steps are called by their transactional ids."""
    for name in names:
        yield from _fresh(name)
    yield Repeat({name: partial(_next_instance, name) for name in names}, 5, _LAST_EPOCH)


def _next_instance(name: str, _: Answers) -> InitProducerIdRequest:
    return _initialize(name)


def _held_end(name: str, generation: Generation, *, is_commit: bool) -> Script:
    yield from _fresh(name)
    me = of(name)
    held = f"held-{generation.end}-{_verb(is_commit)}"
    yield from led_by_it(held)
    yield from ask(f"{name}: a partition", adds(me, held, 0, name=name), generation.adds)
    end = f"{name}: the end"
    yield from ask(end, ends(me, is_commit=is_commit, name=name), generation.end)
    following = of(end) if generation is NEWER else me
    yield from _behind(name, generation, (me, following, of(name, more=7), of(name, epoch=-1), of(name, epoch=2)))
    yield from deleted(held)
    yield from ask(
        f"{name}: the next end", ends(following, is_commit=False, name=name), generation.end, until=is_complete
    )
    yield from ask(f"{name}: the next instance", _initialize(name), 5, until=is_complete)


def _behind(name: str, generation: Generation, identities: tuple[Identity, ...]) -> Script:
    """Requests of a producer with each of these identities, of which the second is the producer's present identity."""
    for number, who in enumerate(identities):
        for is_commit in (True, False):
            step = f"{name}: a {_verb(is_commit)} by {number}"
            yield from ask(step, ends(who, is_commit=is_commit, name=name), generation.end)
        yield from ask(f"{name}: {number} names its identity", initializes(who, name=name), 5)
    yield from ask(f"{name}: the next instance, early", _initialize(name), 5)
    present = identities[1]
    yield from ask(f"{name}: the next transaction's partition", adds(present, FREE, 0, name=name), generation.adds)
    if generation is OLDER:
        step = f"{name}: the group's partition"
        yield from ask(step, adds_offsets(present, name, name=name), 3)
    offsets = commits(present, 7, topic=FREE, group=name, name=name)
    yield from ask(f"{name}: the next transaction's offsets", offsets, generation.commit)

    def write(answers: Answers) -> ProduceRequest:
        producer_id, epoch = present(answers)
        data = batch(1, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        request: ProduceRequest = produce(FREE, data, transactional_id=name)(answers)
        return request

    yield from ask(f"{name}: the next transaction's batch", write, generation.produce)


def _own_transaction(name: str, generation: Generation) -> Script:
    """KIP-360: a producer names its identity while its transaction is open."""
    yield from _aborted_by_itself(name, generation)
    for is_commit in (True, False):
        step = f"{name}: a {_verb(is_commit)} with the identity of before"
        yield from ask(step, ends(of(name), is_commit=is_commit, name=name), generation.end)
    following = of(f"{name}: it goes on")
    yield from ask(f"{name}: its next partition", adds(following, FREE, 0, name=name), generation.adds)
    yield from ask(f"{name}: its next commit", ends(following, is_commit=True, name=name), generation.end)


def _own_transaction_in_the_last_epoch(name: str) -> Script:
    """The same in the last epoch, behind which Kafka's id cannot be used any more."""
    yield from _aborted_by_itself(name, NEWER)


def _aborted_by_itself(name: str, generation: Generation) -> Script:
    me = of(name)
    yield from ask(f"{name}: a partition", adds(me, FREE, 0, name=name), generation.adds)
    yield from ask(f"{name}: it goes on", initializes(me, name=name), 5, until=is_complete)
    yield from ask(f"{name}: it has not heard", initializes(me, name=name), 5)


def _hand_over(name: str) -> Script:
    """KIP-890: the end in the last epoch gives the producer another id, before its markers are written."""
    me = of(name)
    yield from led_by_it("held-in-the-last-epoch")
    yield from ask(f"{name}: a partition", adds(me, "held-in-the-last-epoch", 0, name=name), NEWER.adds)
    end = f"{name}: the end"
    yield from ask(end, ends(me, is_commit=True, name=name), NEWER.end)
    yield from _behind(name, NEWER, (me, of(end), of(name, more=7)))
    yield from deleted("held-in-the-last-epoch")
    yield from ask(f"{name}: the end again", ends(me, is_commit=True, name=name), NEWER.end, until=is_complete)
    yield from ask(f"{name}: the new id names its identity", initializes(of(end), name=name), 5)
    yield from ask(f"{name}: the old id names its identity", initializes(me, name=name), 5)
    yield from ask(f"{name}: the next instance", _initialize(name), 5)


def _rotation(name: str) -> Script:
    """InitProducerId in the last epoch gives the producer another id."""
    me = of(name)
    yield from ask(f"{name}: it goes on", initializes(me, name=name), 5)
    yield from ask(f"{name}: it has not heard", initializes(me, name=name), 5)
    yield from ask(f"{name}: a commit with the identity of before", ends(me, is_commit=True, name=name), NEWER.end)
    yield from ask(f"{name}: its partition", adds(of(f"{name}: it goes on"), FREE, 0, name=name), NEWER.adds)
    yield from ask(f"{name}: the next instance", _initialize(name), 5, until=is_complete)
