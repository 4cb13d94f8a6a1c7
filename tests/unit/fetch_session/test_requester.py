import sys
from collections.abc import Iterable

import pytest

from tailrace.fetch_session.epochs import FINAL_EPOCH, MAX_EPOCH
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.errors import ErrorCode

ID = 77
REFUSALS = [
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]

Requester = FetchSessionRequester[str, int]
Request = SessionRequest[str, int]


def take(
    requester: Requester, keys: Iterable[str] = (), *, error: int = 0, session_id: int = ID, is_throttled: bool = False
) -> bool:
    return requester.answered(error_code=error, session_id=session_id, keys=list(keys), is_throttled=is_throttled)


def in_session(max_partitions: int | None = None, **wanted: int) -> Requester:
    """A requester whose session has these partitions."""
    requester = Requester(max_partitions=max_partitions)
    request = requester.request(wanted.items(), ())
    assert take(requester, dict(request.partitions))
    return requester


def place(request: Request) -> tuple[int, int]:
    return request.session_id, request.session_epoch


def test_the_first_fetch_is_full_and_asks_for_a_session() -> None:
    request = Requester().request([("a", 1), ("b", 2)], ())
    assert place(request) == (0, 0)
    assert request.is_full
    assert request.partitions == (("a", 1), ("b", 2))
    assert (request.forgotten, request.is_slice) == ((), False)


def test_the_fetches_of_a_session_count_its_epochs() -> None:
    requester = in_session(a=1)
    places = []
    for _ in range(3):
        request = requester.request((), ())
        places.append(place(request))
        assert not request.is_full
        assert take(requester)
    assert places == [(ID, 1), (ID, 2), (ID, 3)]


def test_the_epoch_after_the_largest_is_one() -> None:
    requester = in_session(a=1)
    requester.epoch = MAX_EPOCH
    assert place(requester.request((), ())) == (ID, MAX_EPOCH)
    assert take(requester)
    assert place(requester.request((), ())) == (ID, 1)


def test_an_incremental_fetch_names_what_is_new_and_what_has_changed() -> None:
    requester = in_session(a=1, b=2, c=3)
    request = requester.request([("c", 4), ("d", 1), ("a", 1)], ())
    assert request.partitions == (("c", 4), ("d", 1))
    assert take(requester)
    assert requester.request((), ()).partitions == ()


def test_a_large_session_leaves_no_room_behind_that_each_later_fetch_would_walk_through() -> None:
    many = [(str(number), 1) for number in range(5_000)]
    requester = in_session()
    requester.request(many, ())
    take(requester)
    requester.request([("a", 1)], [key for key, _ in many])
    assert max(sys.getsizeof(requester._unsent), sys.getsizeof(requester._leaving)) < 1_000


def test_a_value_that_is_as_before_by_the_next_fetch_is_not_sent() -> None:
    requester = in_session(1, a=1, b=2, c=3)
    # One partition a fetch: `b` is named, and `c` waits for its turn.
    assert requester.request([("a", 9)], ()).partitions == (("b", 2),)
    assert take(requester)
    assert requester.request([("a", 1)], ()).partitions == (("c", 3),)
    assert take(requester)
    assert requester.request((), ()).partitions == ()


def test_a_partition_that_only_changes_its_place_is_not_sent_but_comes_last_in_a_full_fetch() -> None:
    requester = in_session(a=1, b=2)
    assert requester.request([("a", 1)], ()).partitions == ()
    requester.failed()
    assert requester.request((), ()).partitions == (("b", 2), ("a", 1))


def test_a_partition_that_is_no_longer_wanted_is_forgotten_once() -> None:
    requester = in_session(a=1, b=2)
    request = requester.request((), ["a", "unknown"])
    assert (request.partitions, request.forgotten) == ((), ("a",))
    assert take(requester)
    assert requester.request((), ["a"]).forgotten == ()


def test_a_new_id_of_a_topic_is_another_partition_and_the_old_one_is_forgotten() -> None:
    requester = in_session(old_id=1)
    request = requester.request([("new_id", 1)], ["old_id"])
    assert (request.partitions, request.forgotten) == ((("new_id", 1),), ("old_id",))


def test_a_partition_that_is_forgotten_and_wanted_at_once_enters_again_with_the_next_fetch() -> None:
    requester = in_session(a=1, b=2)
    request = requester.request([("a", 1)], ["a"])
    assert (request.partitions, request.forgotten, request.is_slice) == ((), ("a",), True)
    assert take(requester)
    request = requester.request((), ())
    assert (request.partitions, request.forgotten, request.is_slice) == ((("a", 1),), (), False)
    requester.failed()
    assert requester.request([("b", 2)], ["b"]).partitions == (("a", 1), ("b", 2))


def test_a_full_fetch_is_repeated_whole_after_the_loss_of_one() -> None:
    requester = in_session(a=1, b=2)
    requester.request([("c", 3)], ["a"])
    requester.failed()
    request = requester.request((), ())
    assert place(request) == (ID, 0)
    assert (request.partitions, request.forgotten) == ((("b", 2), ("c", 3)), ())


def test_an_unknown_session_is_given_up() -> None:
    requester = in_session(a=1)
    requester.request((), ())
    assert not take(requester, ["a"], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    request = requester.request((), ())
    assert (place(request), request.partitions) == ((0, 0), (("a", 1),))


@pytest.mark.parametrize("error", [*REFUSALS, 999])
def test_any_other_error_closes_the_session_and_counts_for_every_partition(error: int) -> None:
    requester = in_session(a=1)
    requester.request((), ())
    assert not take(requester, ["a"], error=error, session_id=0)
    request = requester.request((), ())
    assert (place(request), request.partitions) == ((ID, 0), (("a", 1),))


def test_a_broker_without_sessions_gets_full_fetches() -> None:
    requester = Requester()
    for _ in range(3):
        request = requester.request([("b", 2)], ()) if len(requester) else requester.request([("a", 1)], ())
        assert place(request) == (0, 0)
        assert take(requester, dict(request.partitions), session_id=0)
    assert requester.request((), ()).partitions == (("a", 1), ("b", 2))


def test_the_data_of_a_session_that_its_broker_has_closed_count() -> None:
    requester = in_session(a=1)
    requester.request((), ())
    assert take(requester, ["a"], session_id=0)
    assert place(requester.request((), ())) == (0, 0)


def test_an_incremental_answer_may_have_any_of_its_partitions_and_no_other() -> None:
    requester = in_session(a=1, b=2)
    requester.request([("c", 3)], ["a"])
    assert take(requester, ["c", "b"])
    requester.request((), ())
    assert not take(requester, ["b", "a"])
    assert place(requester.request((), ())) == (ID, 0)


@pytest.mark.parametrize("keys", [["a"], [], ["a", "b", "c"]])
def test_a_full_answer_with_other_partitions_than_the_request_is_not_used(keys: list[str]) -> None:
    requester = Requester()
    requester.request([("a", 1), ("b", 2)], ())
    assert not take(requester, keys)
    assert place(requester.request((), ())) == (0, 0)
    assert take(requester, ["b", "a"])  # in any order
    assert place(requester.request((), ())) == (ID, 1)


def test_a_full_fetch_that_was_throttled_is_repeated() -> None:
    requester = in_session(a=1)
    requester.request((), ())
    requester.failed()
    requester.request((), ())
    assert not take(requester, session_id=0, is_throttled=True)
    assert place(requester.request((), ())) == (0, 0)
    assert take(requester, ["a"], is_throttled=True)
    assert place(requester.request((), ())) == (ID, 1)


def test_an_incremental_fetch_that_was_throttled_goes_on() -> None:
    requester = in_session(a=1)
    requester.request((), ())
    assert take(requester, is_throttled=True)
    assert place(requester.request((), ())) == (ID, 2)


def test_a_session_is_closed_once() -> None:
    requester = in_session(a=1)
    request = requester.close()
    assert request is not None
    assert place(request) == (ID, FINAL_EPOCH)
    assert (request.partitions, request.forgotten, request.is_slice) == ((), (), False)
    assert requester.close() is None
    assert place(requester.request((), ())) == (0, 0)


def test_no_session_needs_no_close() -> None:
    requester = Requester()
    requester.request([("a", 1)], ())
    assert requester.close() is None


def test_a_session_that_is_closed_behind_a_fetch_ignores_its_answer() -> None:
    requester = in_session(a=1)
    requester.request((), ())
    assert requester.close() is not None
    assert not take(requester, ["a"])
    assert requester.close() is None
    assert place(requester.request((), ())) == (0, 0)
    assert take(requester, ["a"])


def test_a_session_that_is_opened_behind_a_close_is_closed_too() -> None:
    requester = in_session(a=1)
    requester.failed()
    requester.request((), ())
    first = requester.close()
    assert take(requester, ["a"], session_id=78)
    second = requester.close()
    assert [first and place(first), second and place(second)] == [(ID, FINAL_EPOCH), (78, FINAL_EPOCH)]


def sliced(requester: Requester, session_id: int = ID) -> list[tuple[int, list[str], list[str]]]:
    """The fetches up to the first that is no slice: epoch, partitions, forgotten partitions."""
    fetches = []
    is_slice = True
    while is_slice:
        request = requester.request((), ())
        named = [key for key, _ in request.partitions]
        fetches.append((request.session_epoch, named, list(request.forgotten)))
        assert take(requester, named if request.is_full else (), session_id=session_id)
        is_slice = request.is_slice
    return fetches


def test_a_large_session_is_opened_in_slices() -> None:
    requester = Requester(max_partitions=2)
    request = requester.request([(key, 0) for key in "abcde"], ())
    assert [key for key, _ in request.partitions] == ["a", "b"]
    assert request.is_slice
    assert not take(requester, "abc")  # exactly what this fetch has named
    assert sliced(requester) == [(0, ["a", "b"], []), (1, ["c", "d"], []), (2, ["e"], [])]


def test_a_change_of_a_partition_that_waits_for_its_slice_is_sent_once() -> None:
    requester = Requester(max_partitions=2)
    requester.request([(key, 0) for key in "abcde"], ())
    assert take(requester, "ab")
    request = requester.request([("c", 1)], ["d"])
    assert request.partitions == (("e", 0), ("c", 1))
    assert not request.is_slice


def test_a_large_change_is_sent_in_slices_too() -> None:
    requester = in_session(2, a=0, b=0)
    requester.request([(key, 1) for key in "abcde"], ())
    assert take(requester, "ab")
    assert sliced(requester) == [(2, ["c", "d"], []), (3, ["e"], [])]
    request = requester.request([("e", 2), ("f", 0)], "abc")
    assert (request.forgotten, request.partitions) == (("a", "b"), ())
    assert take(requester)
    assert sliced(requester) == [(5, ["e"], ["c"]), (6, ["f"], [])]


@pytest.mark.parametrize("limit", [3, 4], ids=["with more to say", "with the last slice"])
def test_a_session_that_the_broker_closes_while_it_grows_is_followed_by_a_fetch_of_everything(limit: int) -> None:
    """In slices again it would be closed again, and the partitions behind its limit would never be named."""
    requester = Requester(max_partitions=2)
    request = requester.request([(key, 0) for key in "abcde"], ())
    named = [key for key, _ in request.partitions]
    while len(named) <= limit:
        assert take(requester, [key for key, _ in request.partitions])
        request = requester.request((), ())
        named += [key for key, _ in request.partitions]
    assert take(requester, session_id=0)
    request = requester.request((), ())
    assert [key for key, _ in request.partitions] == list("abcde")
    assert take(requester, "abcde", session_id=0)
    assert len(requester.request((), ()).partitions) == 5


def test_slices_begin_again_when_the_session_is_lost() -> None:
    requester = Requester(max_partitions=2)
    requester.request([(key, 0) for key in "abcde"], ())
    assert take(requester, "ab")
    requester.request((), ())
    requester.failed()
    assert sliced(requester) == [(0, ["a", "b"], []), (1, ["c", "d"], []), (2, ["e"], [])]


def test_a_broker_without_sessions_gets_whole_fetches_after_the_first() -> None:
    requester = Requester(max_partitions=2)
    requester.request([(key, 0) for key in "abcde"], ())
    assert take(requester, "ab", session_id=0)
    assert sliced(requester, session_id=0) == [(0, ["a", "b", "c", "d", "e"], [])]
    assert sliced(requester) == [(0, ["a", "b", "c", "d", "e"], [])]  # a session at last
    assert sliced(requester) == [(1, [], [])]


class CountingKey:
    """A key that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        CountingKey.hashed += 1
        return id(self)


def test_a_fetch_of_a_session_costs_as_much_as_its_changes() -> None:
    keys = [CountingKey() for _ in range(10_000)]
    requester = FetchSessionRequester[CountingKey, int]()
    requester.request([(key, 0) for key in keys], ())
    assert requester.answered(error_code=0, session_id=ID, keys=keys)
    CountingKey.hashed = 0
    request = requester.request([(keys[5], 1), (keys[7], 0)], [keys[9]])
    assert requester.answered(error_code=0, session_id=ID, keys=[keys[5]])
    assert (len(request.partitions), len(request.forgotten)) == (1, 1)
    assert 0 < CountingKey.hashed < 50
