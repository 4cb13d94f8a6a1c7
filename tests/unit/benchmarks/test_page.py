"""A line's section on the page is replaced; what is written by hand stays."""

from pathlib import Path

import pytest

from benchmarks.results import chart, page
from benchmarks.results.figures import Bar, Section, Target, Verdict

TARGET = Target(test="produce", server="ours", quantity="rate", limit=1.0, beside="peer")
SECTION = Section(
    name="records",
    title="Records",
    conditions="One client.",
    head=("test", "server", "MB/s", "rounds, MB/s"),
    rows=(("produce", "ours", "10", "9 10 11"),),
    verdicts=(Verdict(TARGET, 0.8),),
    absent=("peer is absent: apt-get install peer",),
    chart_head="MB/s",
    bars=(Bar("produce", "ours", [9, 10, 11]),),
)


def test_a_section_names_machine_conditions_absent_peers_and_missed_targets() -> None:
    text = page.markdown(SECTION, "Machine: two CPUs.")
    assert text.split("\n\n") == [
        "## Records",
        "One client.",
        "Machine: two CPUs.",
        "| test | server | MB/s | rounds, MB/s |\n| --- | --- | ---: | --- |\n| produce | ours | 10 | 9 10 11 |",
        "- peer is absent: apt-get install peer",
        "- produce, ours, rate: at least 1 x peer; measured 0.80: missed by 20%",
        "![Records: MB/s](records.png)",
    ]


def test_a_new_section_comes_last() -> None:
    text = page.replaced("# Title\n\nBy hand.\n", "records", "new")
    assert text.startswith("# Title\n\nBy hand.\n\n<!-- records")
    assert "\n\nnew\n\n" in text


def test_only_the_section_of_that_name_is_replaced() -> None:
    text = page.replaced("# By hand\n", "records", "first")
    text = page.replaced(text, "start", "other") + "\nBy hand below.\n"
    again = page.replaced(text, "records", "second")
    assert again == text.replace("first", "second")


def test_saving_again_the_same_changes_nothing() -> None:
    text = page.replaced("# By hand\n", "records", "same")
    assert page.replaced(text, "records", "same") == text


def test_a_section_without_an_end_is_refused_and_nothing_is_lost() -> None:
    text = page.replaced("# By hand\n", "records", "first").replace("<!-- records: end -->", "")
    with pytest.raises(ValueError, match="no end"):
        page.replaced(text, "records", "second")


def test_the_page_of_this_repository_takes_each_section() -> None:
    text = page.PAGE.read_text()
    for name in ("records", "frames", "requests", "latency", "start", "partitions"):
        replaced = page.replaced(text, name, "new")
        assert replaced.count(f"<!-- {name}: ") == 2


def test_a_chart_is_a_picture(tmp_path: Path) -> None:
    chart.draw(SECTION, tmp_path / "records.png")
    assert (tmp_path / "records.png").read_bytes().startswith(b"\x89PNG")
