"""Transactions that hold back the last stable offset (KIP-98)."""

from tailrace.storage.segment_files.transaction_index import OngoingTransactions


def test_the_oldest_open_transaction_counts() -> None:
    transactions = OngoingTransactions()
    assert not transactions
    for first_offset in (3, 5, 9):
        transactions.begin(first_offset, 100 + first_offset)
    assert (transactions.first_open_offset, len(transactions)) == (3, 3)
    transactions.end(5, 10)
    assert transactions.first_open_offset == 3
    transactions.end(3, 11)
    assert transactions.first_open_offset == 9
    assert transactions.oldest_producer_id == 109


def test_one_that_has_ended_counts_until_its_marker_is_below_the_high_watermark() -> None:
    transactions = OngoingTransactions([(3, 7)])
    transactions.end(3, 7)
    assert transactions.first_open_offset is None
    assert transactions.first_unstable_offset(7) == 3
    assert transactions
    assert transactions.first_unstable_offset(8) is None
    assert not transactions


def test_replicated_transactions_are_forgotten_in_the_order_of_their_markers() -> None:
    transactions = OngoingTransactions([(1, 7), (2, 8), (3, 9)])
    for first_offset, marker in ((3, 10), (1, 11), (2, 12)):
        transactions.end(first_offset, marker)
    transactions.forget_replicated(11)
    assert transactions.first_unstable_offset(0) == 1
    transactions.forget_replicated(12)
    assert transactions.first_unstable_offset(0) == 2


def test_a_log_that_is_cut_knows_its_open_transactions_and_the_markers_that_are_left() -> None:
    transactions = OngoingTransactions([(1, 7), (2, 8), (3, 9)])
    transactions.end(1, 10)
    transactions.end(2, 11)
    transactions.restart([(3, 9), (2, 8)], end_offset=11)
    assert transactions.first_open_offset == 2
    assert transactions.first_unstable_offset(10) == 1
    assert transactions.first_unstable_offset(11) == 2
