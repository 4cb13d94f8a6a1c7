"""The pytest fixtures of the kit, in runs of pytest of their own."""

import re

import pytest

from tailrace.testing.topic_names import fresh_name

TEST = """
import pytest
from tailrace import Admin

def partitions(cluster, topic):
    with Admin(cluster.bootstrap_servers) as admin:
        return len(admin.describe_topics([topic])[0].partitions)

seen = set()

@pytest.mark.parametrize("drink", ["tea", "green tea/gin"])
def test_drinks(tailrace_cluster, tailrace_topic, tailrace_group, drink):
    assert tailrace_topic.startswith("test_drinks-" + drink.split("/")[0].replace(" ", "-"))
    assert tailrace_group.startswith("test_drinks-")
    assert tailrace_topic not in seen and tailrace_group not in seen
    seen.update((tailrace_topic, tailrace_group))
    assert partitions(tailrace_cluster, tailrace_topic) == 1

@pytest.mark.tailrace_topic(partitions=3, config={"retention.ms": "1000"})
def test_shape(tailrace_cluster, tailrace_topic):
    assert partitions(tailrace_cluster, tailrace_topic) == 3
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        settings = admin.describe_topic_configs([tailrace_topic])[tailrace_topic]
    assert "1000" in str([each for each in settings if each.name == "retention.ms"])

def test_two_topics(tailrace_cluster, tailrace_topic_factory):
    source, target = tailrace_topic_factory("orders", 2), tailrace_topic_factory()
    assert source.startswith("orders-") and target.startswith("test_two_topics-")
    assert partitions(tailrace_cluster, source) == 2
"""


def _run(pytester: pytest.Pytester, text: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    return pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "--strict-markers")


def test_each_test_has_a_topic_and_a_group_of_its_own(pytester: pytest.Pytester) -> None:
    _run(pytester, TEST).assert_outcomes(passed=4)


def test_a_misspelt_argument_of_the_marker_is_named(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
        import pytest

        @pytest.mark.tailrace_topic(partition=3)
        def test_shape(tailrace_topic):
            pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*TypeError: @pytest.mark.tailrace_topic takes partitions, replication_factor, config by name, and not *"]
    )


def test_a_cluster_of_the_project_takes_the_place_of_the_kits(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from tailrace.testing import Cluster

        @pytest.fixture(scope="session")
        def tailrace_cluster():
            with Cluster(brokers=2, config={"default.replication.factor": "2"}) as cluster:
                yield cluster
        """
    )
    _run(
        pytester,
        """
        from tailrace import Admin

        def test_replicas(tailrace_cluster, tailrace_topic):
            with Admin(tailrace_cluster.bootstrap_servers) as admin:
                assert admin.describe_topics([tailrace_topic])[0].replication_factor == 2
        """,
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize("test", ["test_ä[ö/ü]", "", "x" * 400, "test_a[..]"])
def test_every_name_of_a_test_gives_a_name_that_kafka_takes(test: str) -> None:
    name = fresh_name(test)
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name)
    assert name != fresh_name(test)


def test_a_mistake_in_a_call_shows_the_line_of_the_test_and_no_frame_of_the_kit(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
        def test_a_row(tailrace_cluster, tailrace_topic):
            tailrace_cluster.produce(tailrace_topic, [5])

        def test_a_list(tailrace_cluster, tailrace_topic):
            tailrace_cluster.assert_holds(tailrace_topic, "tea")

        def test_partitions(tailrace_cluster, tailrace_topic):
            tailrace_cluster.produce(tailrace_topic, ["tea"], partitions=2)

        def test_a_topic(tailrace_cluster, tailrace_topic):
            tailrace_cluster.create_topic(tailrace_topic)

        def test_a_name(tailrace_cluster, tailrace_topic):
            tailrace_cluster.create_topic("no name")

        def test_reading(tailrace_cluster):
            tailrace_cluster.read_all("no-topic")

        def test_a_number_in_text(tailrace_cluster):
            tailrace_cluster.create_topic("orders", partitions="3")

        def test_a_name_that_is_no_text(tailrace_cluster):
            tailrace_cluster.produce(5, ["tea"])
        """,
    )
    result.assert_outcomes(failed=8)
    places = re.findall(r"^(\S+\.py):\d+: \w+", str(result.stdout), re.MULTILINE)
    assert len(places) == 8
    assert {place.rpartition("/")[2] for place in places} == {next(pytester.path.glob("test_*.py")).name}
    assert "TOPIC_ALREADY_EXISTS" in str(result.stdout)
    assert "partitions is a whole number, not '3'" in str(result.stdout)
    assert "the name of a topic is a text, not 5" in str(result.stdout)
