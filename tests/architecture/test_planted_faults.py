"""Planted faults (`simulation.planted`) still fit the source, and are of ten kinds or more."""

import pytest

from simulation.planted import TURNS as PLANTED_TURNS
from simulation.planted import PlantedFault, planted_faults
from turns import ROOT, TURNS

FAULTS = planted_faults()


@pytest.mark.always
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_text_that_a_fault_replaces_is_in_the_source_exactly_once(fault: PlantedFault) -> None:
    assert fault.patches
    assert [patch.occurrences() for patch in fault.patches] == [1] * len(fault.patches)
    assert all(patch.new != patch.old for patch in fault.patches)


@pytest.mark.always
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_that_can_find_a_fault_exist(fault: PlantedFault) -> None:
    assert fault.tests
    assert [path for path in fault.tests if not (ROOT / path).exists()] == []


def test_each_fault_is_of_a_kind_of_its_own() -> None:
    kinds = {fault.kind for fault in FAULTS}
    assert len(kinds) == len(FAULTS) >= 10
    assert sum(fault.is_always for fault in FAULTS) >= 10


def test_faults_are_planted_in_each_turn_of_the_suite() -> None:
    assert tuple(PLANTED_TURNS) == tuple(range(TURNS))
