"""Listeners of tests run on both kinds of event loop."""

import asyncio

import pytest
import uvloop

from testkit.nodes.listeners import (
    Run,
    Scenario,
)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario on each kind of event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario(), 60))

    return run_scenario


@pytest.fixture(autouse=True)
def no_other_code_reads_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios call `check_time` with times of their own; times of the real clock would lie between them."""
    monkeypatch.setattr("tailrace.net.listener._CHECK_SECONDS", 3_600)


@pytest.fixture
def a_listener_that_stops_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not make it cut off bytes that the scenario waits for."""
    monkeypatch.setattr("tailrace.net.listener._STOP_SECONDS", 60)
