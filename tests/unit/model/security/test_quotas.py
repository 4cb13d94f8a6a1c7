"""The quota of a client, by the order of precedence of KIP-55."""

from itertools import product

import pytest

from tailrace.model.security.quotas import EntityParts, QuotaMatch, QuotaRules, entity_of, normal_address

USER_APP = (("user", "alice"), ("client-id", "app"))
IN_ORDER: tuple[tuple[EntityParts, tuple[str, str]], ...] = (
    (USER_APP, ("alice", "app")),
    ((("user", "alice"), ("client-id", None)), ("alice", "app")),
    ((("user", "alice"),), ("alice", "")),
    ((("user", None), ("client-id", "app")), ("alice", "app")),
    ((("user", None), ("client-id", None)), ("alice", "app")),
    ((("user", None),), ("alice", "")),
    ((("client-id", "app"),), ("", "app")),
    ((("client-id", None),), ("", "app")),
)
"""Entities of a client, the most specific entity first, with the clients that share the count."""


def test_the_most_specific_quota_wins_in_every_set_of_quotas() -> None:
    for chosen in product((False, True), repeat=len(IN_ORDER)):
        limits = {entity: float(number) for number, (entity, _) in enumerate(IN_ORDER) if chosen[number]}
        rules = QuotaRules(limits.items())
        expected = None
        if True in chosen:
            first = chosen.index(True)
            expected = QuotaMatch(*IN_ORDER[first][1], float(first))
        assert rules.find("alice", "app") == expected
        assert bool(rules) is any(chosen)


def test_quotas_of_other_clients_do_not_count() -> None:
    rules = QuotaRules([(USER_APP, 1.0), ((("client-id", "other"),), 2.0)])
    assert rules.find("bob", "app") is None
    assert rules.find("alice", "third") is None
    assert rules.find("bob", "other") == QuotaMatch("", "other", 2.0)


@pytest.mark.parametrize("number", range(len(IN_ORDER)))
def test_a_client_without_client_id_has_quotas_of_users_alone(number: int) -> None:
    entity, _ = IN_ORDER[number]
    match = QuotaRules([(entity, 1.0)]).find("alice", "")
    assert match == (QuotaMatch("alice", "", 1.0) if dict(entity).keys() == {"user"} else None)


def test_an_entity_has_its_types_in_one_order() -> None:
    assert entity_of({"client-id": "app", "user": "alice"}) == USER_APP


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        *(("127.0.0.1", "127.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("0:0::1", "::1"), ("fe80::1%eth0", "fe80::1")),
        *(("localhost", None), ("", None), ("10.0.0", None)),
    ],
)
def test_addresses_are_compared_in_one_form(text: str, normal: str | None) -> None:
    assert normal_address(text) == normal
