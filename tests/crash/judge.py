"""The judge of a run under faults: the figures are noted and printed, and a broken promise fails the test."""

from collections.abc import Callable, Sequence


class Judge:
    """A call has the broken promises of a run, and its figures."""

    def __init__(self, note: Callable[[str, object], None]) -> None:
        self._note = note

    def __call__(self, faults: Sequence[str], figures: str) -> None:
        self._note("figures", figures)
        print(figures)  # noqa: T201
        assert not faults, f"{len(faults)} promises broken:\n" + "\n".join(faults[:20])
