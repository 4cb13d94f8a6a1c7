"""The count of the clients of a quota: shared counts, changed limits, bounded memory."""

import pytest

from tailrace.model.security.quotas import QuotaRules
from tailrace.server.quotas import counts
from tailrace.server.quotas.client_quota import ClientQuota

DEFAULT_CLIENT = (("client-id", None),)
ALICE = (("user", "alice"),)


def quota(**limits: float) -> ClientQuota:
    made = ClientQuota(samples=11, sample_ms=1_000)
    entities = {"alice": ALICE, "default_client": DEFAULT_CLIENT}
    made.rules = QuotaRules((entities[name], limit) for name, limit in limits.items())
    return made


def test_the_client_ids_of_a_user_share_the_quota_of_the_user() -> None:
    made = quota(alice=1_000)
    assert made.charge(("alice", "a"), 10_000, 0) == 0
    assert made.charge(("alice", "b"), 1_000, 0) == 1_000
    assert made.charge(("bob", "a"), 1_000_000, 0) == 0
    assert len(made.counts) == 1


def test_each_client_id_has_the_default_quota_for_itself() -> None:
    made = quota(default_client=1_000)
    assert made.charge(("alice", "a"), 11_000, 0) == 1_000
    assert made.charge(("bob", "a"), 0, 0) == 1_000
    assert made.charge(("alice", "b"), 10_000, 0) == 0


def test_a_changed_limit_counts_what_was_counted_before() -> None:
    made = quota(alice=1_000)
    made.charge(("alice", "a"), 12_000, 0)
    assert made.allowance(("alice", "a"), 0) == 0
    made.rules = QuotaRules([(ALICE, 2_000.0)])
    assert made.charge(("alice", "a"), 0, 0) == 0
    assert made.allowance(("alice", "a"), 0) == 20_000
    made.rules = QuotaRules([])
    assert made.allowance(("alice", "a"), 0) is None


def test_a_throttle_time_has_a_limit() -> None:
    made = ClientQuota(samples=11, sample_ms=1_000, longest_ms=1_000)
    made.rules = QuotaRules([(ALICE, 1.0)])
    assert made.charge(("alice", "a"), 1_000, 0) == 1_000


def test_measures_have_rates_and_average_throttle_times() -> None:
    made = quota(alice=1_000)
    made.charge(("alice", "a"), 11_000, 0)
    made.charge(("alice", "a"), 2_000, 0)
    ((user, client_id, rate, throttle_time_ms),) = made.measures(0)
    assert (user, client_id, rate, throttle_time_ms) == ("alice", "", 1_300, 2_000)


def test_counts_have_a_limit_and_the_longest_unused_count_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST_COUNTS", 3)
    made = quota(default_client=1_000)
    for number in range(3):
        made.charge(("u", f"client-{number}"), 1, number)
    made.charge(("u", "client-0"), 1, 5)
    made.charge(("u", "client-3"), 1, 6)
    assert [key[1] for key, _ in made.counts.items()] == ["client-2", "client-0", "client-3"]


def test_a_count_that_is_idle_for_an_hour_goes() -> None:
    made = quota(default_client=1_000)
    made.charge(("u", "a"), 1, 0)
    made.charge(("u", "b"), 1, 1_000)
    assert [measure.client_id for measure in made.measures(counts.IDLE_MS)] == ["b"]
    assert len(made.counts) == 1
