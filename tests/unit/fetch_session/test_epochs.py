from tailrace.fetch_session.epochs import FINAL_EPOCH, INITIAL_EPOCH, MAX_EPOCH, is_full, next_epoch


def test_epochs_rise_by_one_and_wrap_around_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (INITIAL_EPOCH, 1, MAX_EPOCH - 1, MAX_EPOCH)] == [1, 2, MAX_EPOCH, 1]
    assert MAX_EPOCH == 2**31 - 1


def test_nothing_follows_the_final_epoch() -> None:
    assert next_epoch(FINAL_EPOCH) == FINAL_EPOCH


def test_the_initial_and_the_final_epoch_are_those_of_full_fetches() -> None:
    assert [epoch for epoch in (-1, 0, 1, 2, MAX_EPOCH) if is_full(epoch)] == [FINAL_EPOCH, INITIAL_EPOCH]
