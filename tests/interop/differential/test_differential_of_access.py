"""The same requests to Apache Kafka and to a node, both with users and ACLs: answers differ where the list says so."""

from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheKafka
from interop.differential.catalogue.administration.access import ADMIN, BOB, access, secret_of
from interop.differential.catalogue.whole import SETTINGS
from interop.differential.comparison import Comparison, Runner
from interop.differential.differences import never_seen, unlisted
from interop.differential.listed_access import ACCESS
from interop.kafka_tools import absent
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_LEAST_STEPS = 150
_LEAST_FIELDS = 1_000
_SECURED = {
    **SETTINGS,
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
}
_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="{ADMIN}" password="{secret_of(ADMIN)}"'
    + "".join(f' user_{user}="{secret_of(user)}"' for user in (ADMIN, BOB))
    + ";"
)


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    """The script has run once on both."""
    if why := absent():
        pytest.skip(why)
    of_kafka = {**_SECURED, "listener.name.plaintext.plain.sasl.jaas.config": _LOGIN}
    of_ours = {**_SECURED, "sasl.jaas.config": _LOGIN, "listener.insecure.allow": "true"}
    with ApacheKafka(of_kafka) as theirs, Cluster(config=of_ours) as ours:
        runner = Runner([ours.address()], [theirs.address], lambda found: not unlisted([found], ACCESS))
        try:
            yield runner.run(access())
        finally:
            runner.close()


def test_answers_about_access_differ_only_where_the_list_says_so(comparison: Comparison) -> None:
    found = unlisted(comparison.findings, ACCESS)
    assert not found, f"{len(found)} unlisted differences:\n" + "\n".join(map(str, found[:30]))


def test_every_listed_difference_of_access_occurs(comparison: Comparison) -> None:
    assert never_seen(ACCESS, comparison.findings) == []


def test_the_comparison_of_access_is_not_empty(comparison: Comparison) -> None:
    assert comparison.steps >= _LEAST_STEPS
    assert comparison.fields >= _LEAST_FIELDS
