"""The list is held against what was found both ways, and no wider than it says."""

from dataclasses import replace

import pytest

from interop.differential.comparison import Finding
from interop.differential.differences import ANY, Difference, table, unlisted

CODE = "topics.partitions.error_code"
LISTED = Difference("Produce", ("a batch *",), {CODE: ("A (1)", "B (2)")}, "because")
FOUND = Finding("a batch of two", "Produce", 9, "topics[orders].partitions[0].error_code", "A (1)", "B (2)")


def test_a_listed_difference_covers_every_topic_and_partition() -> None:
    assert unlisted([FOUND], [LISTED]) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, api="Fetch"),
        replace(FOUND, step="two batches"),
        replace(FOUND, path="topics[orders].error_code"),
        replace(FOUND, ours="C (3)"),
        replace(FOUND, theirs="A (1)"),
    ],
)
def test_another_difference_is_not_covered(other: Finding) -> None:
    assert unlisted([other], [LISTED]) == [other]


def test_any_value_is_each_but_only_on_its_side() -> None:
    wide = LISTED._replace(fields={CODE: (ANY, "B (2)")})
    assert unlisted([replace(FOUND, ours=7)], [wide]) == []
    assert unlisted([replace(FOUND, theirs=7)], [wide])


def test_beside_an_error_means_that_there_is_one() -> None:
    entry = LISTED._replace(beside_error=True)
    assert unlisted([replace(FOUND, error="X (4)")], [entry]) == []
    for error in ("", "NONE (0)"):
        assert unlisted([replace(FOUND, error=error)], [entry])


def test_a_listed_difference_that_does_not_occur_is_named() -> None:
    entry = LISTED._replace(steps=("a batch *", "no batch"), fields={CODE: ("A (1)", "B (2)"), "other": (1, 2)})
    assert entry.unseen([FOUND]) == ["other", "no batch"]
    assert LISTED.unseen([FOUND]) == []
    assert LISTED.unseen([]) == [CODE, "a batch *"]


def test_settings_keep_their_names() -> None:
    finding = replace(FOUND, path="results[2/orders].configs[retention.ms].synonyms[log.retention.ms/5].value")
    assert finding.field == "results.configs[retention.ms].synonyms.value"


def test_the_table_says_all_that_is_listed() -> None:
    row = table([LISTED._replace(fields={"a[x].b": (1, None), "a[y].b": (1, None)})]).splitlines()[-1]
    assert row == "| Produce | a batch … | `a[x, y].b`: 1, null | because |"
