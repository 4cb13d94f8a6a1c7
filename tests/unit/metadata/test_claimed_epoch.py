"""The epoch of which a starting broker may claim that it still has everything."""

from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import NO_BROKER_EPOCH, claimed_epoch
from tailrace.metadata.image import BrokerImage
from tailrace.model.ids import BrokerId

OWN, OTHER = b"own directory id", b"another one's id"
BEFORE = BrokerImage(
    broker_id=BrokerId(1), incarnation_id=bytes(16), broker_epoch=7, endpoints=(), log_directories=(OWN,)
)


def test_a_broker_that_keeps_all_claims_the_epoch_in_which_it_stopped() -> None:
    assert claimed_epoch(BEFORE, directory_id=OWN, keeps_all=True) == 7
    assert claimed_epoch(BEFORE, directory_id=OWN, keeps_all=False) == NO_BROKER_EPOCH


def test_a_broker_that_is_new_claims_nothing() -> None:
    assert claimed_epoch(None, directory_id=OWN, keeps_all=True) == NO_BROKER_EPOCH


@pytest.mark.parametrize(("registered", "claimed"), [((OTHER,), NO_BROKER_EPOCH), ((OTHER, OWN), 7), ((), 7)])
def test_another_directory_than_the_registered_one_lacks_what_that_had(
    registered: tuple[bytes, ...], claimed: int
) -> None:
    before = replace(BEFORE, log_directories=registered)
    assert claimed_epoch(before, directory_id=OWN, keeps_all=True) == claimed
