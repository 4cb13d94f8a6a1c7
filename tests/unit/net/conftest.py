"""Coroutines of these tests run on both kinds of event loop."""

import asyncio
import inspect

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop_kind")
        metafunc.parametrize("loop_kind", LOOPS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on the kind of loop of its case, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    with asyncio.Runner(loop_factory=LOOPS[str(pyfuncitem.callspec.params["loop_kind"])]) as runner:
        story = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        runner.run(asyncio.wait_for(story, 60))
    return True


@pytest.fixture(autouse=True)
def no_other_code_reads_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios call `check_time` with times of their own; times of the real clock would lie between them."""
    monkeypatch.setattr("tailrace.net.listener._CHECK_SECONDS", 3_600)


@pytest.fixture
def a_listener_that_stops_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not make it cut off bytes that the scenario waits for."""
    monkeypatch.setattr("tailrace.net.listener._STOP_SECONDS", 60)
