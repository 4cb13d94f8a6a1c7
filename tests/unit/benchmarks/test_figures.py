"""Medians, ratios and verdicts are what a reader takes away: they are checked by hand."""

import pytest

from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Bar, Column, Samples, Target, Verdict, bars, judge, number, percentile, table


def samples(**rounds: list[float]) -> Samples:
    """A test in which each server has these rounds of `rate`."""
    found = Samples()
    for server, values in rounds.items():
        for value in values:
            found.add("produce", server, rate=value)
    return found


def test_the_median_is_that_of_the_rounds_and_one_bad_round_does_not_move_it() -> None:
    assert samples(ours=[9, 11, 10, 0.1, 12]).median("produce", "ours", "rate") == 10


def test_the_ratio_is_of_the_medians() -> None:
    found = samples(ours=[10, 30, 20], peer=[5, 1, 9])
    assert found.ratio("produce", "ours", "rate", beside="peer") == 4.0
    assert found.ratio("produce", "peer", "rate", beside="ours") == 0.25


def test_a_series_without_samples_has_neither_median_nor_ratio() -> None:
    found = samples(ours=[10])
    assert found.median("produce", "peer", "rate") is None
    assert found.median("produce", "ours", "cpu") is None
    assert found.ratio("produce", "ours", "rate", beside="peer") is None
    assert found.rounds("consume", "ours", "rate") == []


def test_rows_stand_test_by_test_in_the_order_in_which_servers_were_added_first() -> None:
    found = Samples()
    found.add("produce", "ours")
    found.add("produce", "peer")
    found.add("consume", "ours")
    for test, server in (("consume", "ours"), ("produce", "peer"), ("produce", "ours")):
        found.add(test, server, rate=1)
    assert found.rows() == [("produce", "ours"), ("produce", "peer"), ("consume", "ours")]


def test_a_server_with_warm_ups_only_has_no_row() -> None:
    found = samples(ours=[1])
    found.add("produce", "peer")
    assert found.rows() == [("produce", "ours")]


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(50, 5), (51, 6), (90, 9), (99, 10), (99.9, 10), (100, 10), (0.1, 1)],
)
def test_a_percentile_is_a_measured_value_that_so_many_do_not_exceed(percent: float, expected: float) -> None:
    assert percentile([3, 1, 2, 10, 9, 8, 4, 5, 7, 6], percent) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.5], 99.9) == 7.5


def test_a_table_has_medians_then_ratios_and_the_rounds_at_the_end() -> None:
    found = samples(ours=[2000, 1000, 1500], peer=[500, 500, 500])
    head, rows = table(found, [Column("rate", "MB/s", beside=("peer", "gone"), shows_rounds=True), Column("cpu", "us")])
    assert head == ("test", "server", "MB/s", "x peer", "x gone", "us", "rounds, MB/s")
    assert rows == (
        ("produce", "ours", "1,500", "3.00", "-", "-", "2,000 1,000 1,500"),
        ("produce", "peer", "500", "1.00", "-", "-", "500 500 500"),
    )


def verdict(measured: float | None, limit: float, *, is_upper: bool, beside: str | None = None) -> Verdict:
    target = Target(
        test="produce", server="ours", quantity="MB_per_s", limit=limit, unit="MB/s", beside=beside, is_upper=is_upper
    )
    return Verdict(target, measured)


@pytest.mark.parametrize(
    ("measured", "limit", "is_upper", "missed_by"),
    [
        (1.0, 1.0, False, 0.0),
        (1.2, 1.0, False, 0.0),
        (0.75, 1.0, False, 0.25),
        (0.7, 0.7, True, 0.0),
        (1.0, 0.5, True, 1.0),
        (None, 1.0, False, None),
    ],
)
def test_a_target_is_missed_by_a_share_of_its_limit(
    measured: float | None, limit: float, is_upper: bool, missed_by: float | None
) -> None:
    assert verdict(measured, limit, is_upper=is_upper).missed_by == missed_by


def test_a_verdict_says_what_was_asked_and_by_how_much_it_is_missed() -> None:
    assert str(verdict(0.75, 1.0, is_upper=False, beside="peer")) == (
        "produce, ours, MB per s: at least 1 x peer; measured 0.75: missed by 25%"
    )
    assert str(verdict(0.5, 0.7, is_upper=True)) == "produce, ours, MB per s: at most 0.7 MB/s; measured 0.50: met"


def test_a_verdict_of_the_product_itself_does_not_name_it() -> None:
    target = Target(test="produce", server=TAILRACE, quantity="MB_per_s", limit=1.0, unit="MB/s")
    assert str(Verdict(target, 2.0)) == "produce, MB per s: at least 1 MB/s; measured 2.00: met"


def test_a_target_of_a_few_thousandths_is_not_called_missed_by_nothing() -> None:
    assert str(verdict(0.999, 1.0, is_upper=False)).endswith("measured 1.00: missed by 0.1%")


def test_a_verdict_without_its_peer_is_not_a_verdict() -> None:
    found = verdict(None, 1.0, is_upper=False, beside="peer")
    assert str(found).endswith("not measured, peer is absent")
    assert not found.missed_by


def test_targets_are_judged_by_the_median_or_by_the_ratio() -> None:
    found = samples(ours=[4, 6, 5], peer=[10])
    alone = Target(test="produce", server="ours", quantity="rate", limit=1)
    ratio = Target(test="produce", server="ours", quantity="rate", limit=1, beside="peer")
    assert [verdict.measured for verdict in judge(found, [alone, ratio])] == [5, 0.5]


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.99, "9.99"), (10.25, "10.2"), (99.94, "99.9"), (1234.5, "1,234")]
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_bars_are_the_rows_that_have_the_quantity() -> None:
    found = samples(ours=[1, 2])
    found.add("produce", "peer", cpu=1)
    assert bars(found, "rate") == (Bar("produce", "ours", [1, 2]),)
