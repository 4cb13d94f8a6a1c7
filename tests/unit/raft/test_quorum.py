from hypothesis import given
from hypothesis import strategies as st

from simulation.raft.bench import voter_set
from simulation.raft.state import key_of
from tailrace.raft.open_requests import OpenRequests
from tailrace.raft.progress import UNKNOWN, Progress, ProgressTable
from tailrace.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached, may_follow
from tailrace.raft.rpc import BeginEpoch
from tailrace.raft.voters import Tally, majority_value

REQUEST = BeginEpoch(cluster_id=None, leader_id=1, leader_epoch=1, voter=None)


@given(st.dictionaries(st.integers(1, 7), st.integers(-1, 9), min_size=1))
def test_the_majority_value_of_voters_is_the_largest_that_more_than_half_have_reached(values: dict[int, int]) -> None:
    reached = majority_value(voter_set(*values), lambda key: values[key.id])
    assert sum(value >= reached for value in values.values()) * 2 > len(values)
    assert sum(value > reached for value in values.values()) * 2 <= len(values)


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 9), st.booleans())))
def test_an_election_is_won_or_lost_by_the_first_answers_of_its_voters(
    size: int, answers: list[tuple[int, bool]]
) -> None:
    tally = Tally(voter_set(*range(1, size + 1)))
    first: dict[int, bool] = {}
    for voter_id, granted in answers:
        tally.record(voter_id, granted)
        if voter_id <= size:
            first.setdefault(voter_id, granted)
    grants = sum(first.values())
    assert tally.is_won == (grants * 2 > size)
    assert tally.is_lost == ((size - (len(first) - grants)) * 2 <= size)
    assert len(tally.unanswered) == size - len(first)
    assert not (tally.is_won and tally.is_lost)


def test_raft_roles_follow_each_other_as_the_table_says() -> None:
    tally = Tally(voter_set(1))
    unattached, follower = Unattached(0), Follower(2, 0)
    prospective, candidate, resigned = Prospective(tally, 0), Candidate(tally, 0), Resigned(0, (), set())
    leader = Leader(0, 0, ProgressTable((), 0))
    everything = (unattached, follower, prospective, candidate, leader, resigned)
    for role in everything:
        assert may_follow(role, unattached, epoch_rises=True)
        assert may_follow(role, follower, epoch_rises=True) or role is prospective
        assert may_follow(role, candidate, epoch_rises=True) == (role is prospective)
        assert may_follow(role, leader, epoch_rises=False) == (role is candidate)
        assert may_follow(role, resigned, epoch_rises=False) == (role is leader)
        assert not may_follow(role, leader, epoch_rises=True)
    assert not any(may_follow(resigned, role, epoch_rises=False) for role in everything)


class TestLinks:
    def test_a_raft_replica_has_one_open_request_to_a_node_and_takes_its_answer_once(self) -> None:
        requests = OpenRequests(request_timeout_ms=100, retry_backoff_ms=20)
        assert requests.is_ready(2, 0)
        request_id = requests.open(2, REQUEST, 0)
        assert not requests.is_ready(2, 50)
        assert requests.is_ready(3, 50)
        assert requests.close(request_id + 1) is None
        opened = requests.close(request_id)
        assert opened is not None
        assert opened.destination == 2
        assert requests.close(request_id) is None
        assert requests.is_ready(2, 50)

    def test_an_open_raft_request_without_an_answer_expires_and_the_next_request_waits_for_the_backoff(self) -> None:
        requests = OpenRequests(request_timeout_ms=100, retry_backoff_ms=20)
        request_id = requests.open(2, REQUEST, 0)
        requests.expire(99)
        assert requests.next_ms(2) == 100
        requests.expire(100)
        assert (requests.is_ready(2, 119), requests.is_ready(2, 120), requests.close(request_id)) == (False, True, None)


class TestProgress:
    def test_the_progress_of_a_voter_that_reaches_the_log_end_has_caught_up(self) -> None:
        progress = Progress(key_of(2))
        assert progress.fetched(5, 9, now_ms=10)
        assert progress.last_caught_up_ms == UNKNOWN
        assert not progress.fetched(5, 9, now_ms=20)
        assert progress.fetched(9, 9, now_ms=30)
        assert progress.last_caught_up_ms == 30

    def test_the_progress_of_a_voter_that_reaches_the_log_end_of_its_fetch_before_has_caught_up(self) -> None:
        """As Kafka counts: a busy leader's end moves on while records travel."""
        progress = Progress(key_of(2))
        progress.fetched(5, 9, now_ms=10)
        progress.fetched(9, 14, now_ms=20)
        assert progress.last_caught_up_ms == 10

    def test_the_progress_of_silent_observers_is_dropped_and_of_voters_is_not(self) -> None:
        table = ProgressTable([key_of(2)], now_ms=0)
        table.of(key_of(9)).contacted(0)
        table.of(key_of(8)).contacted(500)
        table.drop_silent([key_of(2)], now_ms=1000, after_ms=1000)
        assert [entry.key.id for entry in table] == [2, 8]
        assert [entry.key.id for entry in table.live(1000, 600)] == [8]
