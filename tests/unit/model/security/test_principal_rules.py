"""The principals of certificates: distinguished names as Java writes them, and rules (KIP-371)."""

import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.security.principal_rules import LONGEST_NAME, PrincipalRules, distinguished_name, whole_name

BROKER = ((("countryName", "DE"),), (("organizationName", "Acme"),), (("commonName", "broker1"),))


def _subject(common_name: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return ((("organizationName", "Acme"),), (("commonName", common_name),))


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (BROKER, "CN=broker1,O=Acme,C=DE"),
        (_subject("a,b+c"), r"CN=a\,b\+c,O=Acme"),
        (_subject('"x" <y>; \\'), r"CN=\"x\" \<y\>\; \\,O=Acme"),
        (_subject(" #x "), r"CN=\ #x\ ,O=Acme"),
        (_subject("#x"), r"CN=\#x,O=Acme"),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
        ((), ""),
    ],
)
def test_the_name_of_a_subject_is_that_of_rfc_2253(subject: tuple[tuple[tuple[str, str], ...], ...], name: str) -> None:
    assert distinguished_name(subject) == name
    assert whole_name(subject) == f"User:{name}"


@pytest.mark.parametrize("value", ["broker1\nCN=evil", "x\x00", "x" * (LONGEST_NAME + 1)])
def test_a_subject_that_could_deceive_a_reader_is_refused(value: str) -> None:
    """Reliability list, N18."""
    with pytest.raises(KafkaError, match="a certificate's subject"):
        whole_name(_subject(value))


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "User:CN=broker1,O=Acme,C=DE"),
        ("", "User:CN=broker1,O=Acme,C=DE"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:broker1"),
        ("RULE:^CN=(.*?),O=(.*?),.*$/$1@$2/U, DEFAULT", "User:BROKER1@ACME"),
        ("RULE:^CN=(.*?),O=(.*?),.*$/$2/L", "User:acme"),
        ("RULE:^CN=other$/x/,DEFAULT", "User:CN=broker1,O=Acme,C=DE"),
        (r"RULE:^CN=(.*?),O=A\w+,.*$/a\/$1/,RULE:.*/y/", r"User:a\/broker1"),
        ("RULE:CN=broker1/all of it/,RULE:.*/anything/", "User:anything"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_makes_the_principal(rules: str, principal: str) -> None:
    assert PrincipalRules(rules)(BROKER) == principal


@pytest.mark.parametrize("rules", ["RULE:^CN=other$/x/", "RULE:^(x?)CN=.*$/$1/"])
def test_a_name_without_a_rule_or_with_an_empty_principal_is_refused(rules: str) -> None:
    with pytest.raises(KafkaError, match="no rule of ssl.principal.mapping.rules"):
        PrincipalRules(rules)(BROKER)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("RULE:^CN=(.*$/x/", "missing"),
        ("RULE:x/$1/", "has no group 1"),
        ("CN=x", "is no rule"),
        ("DEFAULT;DEFAULT", "is no rule"),
        ("RULE:x/y/Q", "is no rule"),
        ("RULE:" + "x" * 9_000, "at most 8192"),
    ],
)
def test_a_text_that_is_no_list_of_rules_is_refused(rules: str, text: str) -> None:
    with pytest.raises(KafkaError, match=r"ssl\.principal\.mapping\.rules: .*" + text):
        PrincipalRules(rules)


def test_a_rule_that_would_backtrack_for_ever_takes_linear_time() -> None:
    rules = PrincipalRules("RULE:^CN=(a+)+b,.*$/$1/,DEFAULT")
    assert rules(_subject("a" * 3_000)).startswith("User:CN=aaa")
