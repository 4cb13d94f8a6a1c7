"""The calls of a request's path are counted."""

from collections.abc import Generator

import pytest

from benchmarks.paths import PATHS, Call, RequestPath, measure, noted
from tailrace.model.steps import result_of
from tailrace.model.views import parse_view


@pytest.mark.parametrize("name", PATHS)
def test_each_request_has_a_path(name: str) -> None:
    path = measure(name)
    assert path.calls[0] == Call("server/dispatch.py", "Dispatcher.on_frame")
    assert path.files > 10
    assert path.moves_back > path.files // 2


def test_a_move_back_is_one_to_a_file_with_earlier_calls() -> None:
    path = RequestPath(tuple(Call(file, "f") for file in "aabcbad"))
    assert (path.files, path.moves, path.moves_back) == (4, 5, 2)


def test_calls_of_the_product_are_noted_and_no_others() -> None:
    def steps() -> Generator[None, None, int]:
        yield
        return 1

    calls: list[Call] = []
    with noted(calls):
        parse_view("orders")
        for _ in steps():
            pass
        result_of(steps())
    parse_view("orders")
    assert calls == [Call("model/views.py", "parse_view"), Call("model/steps.py", "result_of")]
