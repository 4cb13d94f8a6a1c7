"""Tests that `make test` runs a second time when they fail: tests in which a program that is not ours takes part.

- Their verdict rests on Kafka's tools, Spark or a foreign client, which have races of their own: a topic that one of
  Kafka's brokers does not know yet, metadata that a client loses. Three runs in a row have failed for such reasons,
  each in another test.
- At most three tests of a run get a second run (`--max-suite-reruns`): a change that breaks something breaks more, or
  breaks the same again. The output of each first failure is printed at the end (`--rerun-show-tracebacks`): the
  failure is a defect of the test, of the product or of the foreign program, and its name goes into docs/open-ends.md
  until the reason is found.
- Tests of the product's promises have one run, simulations and kills of real nodes among them: what they find now and
  then is a record that is lost now and then. All tests of `make soak` have one run too.
"""

from collections.abc import Iterable

import pytest

WITH_FOREIGN_PROGRAMS = (
    "tests/interop/",
    "tests/spark/",
    "tests/docs/test_pages.py::test_spark",
    "tests/docs/test_pages.py::test_tests",
)


def allow_second_runs(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(WITH_FOREIGN_PROGRAMS):
            item.add_marker(pytest.mark.flaky(reruns=1))
