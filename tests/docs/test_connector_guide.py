"""The guide for users of Spark's connector counts the cases that run beside it."""

from pathlib import Path

from spark.connector.batch_cases import BATCH
from spark.connector.cases import Differs
from spark.connector.stream_cases import STREAM
from spark.connector.write_cases import WRITE

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "from-the-kafka-connector.md"


def test_the_guide_counts_the_cases() -> None:
    relations = [*(case.relation for case in (*BATCH, *STREAM)), *(case.relation for case in WRITE)]
    alike = sum(not isinstance(relation, Differs) for relation in relations)
    text = " ".join(GUIDE.read_text().split())
    assert f"the same {len(relations)} reads and writes side by side" in text
    assert f": {alike} have the same rows or are refused by both" in text
