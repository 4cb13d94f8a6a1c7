import pytest

from tailrace.coordinators.addressing import TOPIC_OF, CoordinatorType, partition_of_group


@pytest.mark.parametrize(
    ("group_id", "hash_code"),
    [("", 0), ("a", 97), ("console-consumer-1", 35782224), ("Zählergruppe", 1534441590)],
)
def test_a_group_lives_where_javas_string_hash_says(group_id: str, hash_code: int) -> None:
    found = partition_of_group(group_id, 50)
    assert found.topic == "__consumer_offsets"
    assert found.partition == (hash_code & 0x7FFFFFFF) % 50


def test_share_groups_have_no_topic() -> None:
    assert CoordinatorType.SHARE not in TOPIC_OF
