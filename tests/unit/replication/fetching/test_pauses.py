from tailrace.replication.pauses import Pauses


def test_pauses_end_at_their_times_in_the_order_of_their_begins() -> None:
    pauses = Pauses[str]()
    pauses.begin("a", 30)
    pauses.begin("b", 10)
    pauses.begin("c", 20)
    assert pauses.next_end_ms == 10
    assert pauses.take_due(9) == []
    assert pauses.take_due(10) == ["b"]
    assert pauses.next_end_ms == 20
    assert pauses.take_due(30) == ["a", "c"]
    assert (pauses.next_end_ms, pauses.take_due(99)) == (None, [])


def test_a_pause_that_was_ended_ends_no_more() -> None:
    pauses = Pauses[str]()
    pauses.begin("a", 10)
    pauses.begin("b", 20)
    pauses.end("a")
    pauses.end("unknown")
    assert pauses.next_end_ms == 20
    pauses.begin("a", 30)
    assert pauses.take_due(25) == ["b"]
    assert pauses.take_due(30) == ["a"]
