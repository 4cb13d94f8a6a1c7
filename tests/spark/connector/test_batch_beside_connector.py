"""Batch reads of both formats: rows and schema equal, or both refused, or different for a reason that is given."""

import pytest

from spark.connector.batch_cases import BATCH
from spark.connector.cases import Case, marked
from spark.connector.formats import FAULTS, Format, assert_related
from spark.connector.topics import ORDERS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("case", marked(BATCH), ids=str)
def test_a_read_beside_the_connector(ours: Format, connector: Format, case: Case) -> None:
    found = ours.read(case.options)
    beside = connector.read(case.options, is_patient=not case.is_refused_by_connector)
    assert_related(case.relation, found, beside)
    if case.tasks is not None:
        found_tasks = (ours.tasks(case.options), connector.tasks(case.options))
        assert found_tasks == (case.tasks.ours, case.tasks.connectors), case.tasks.reason


def test_the_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in BATCH}) == len(BATCH)


def test_a_schema_is_ours_alone(ours: Format, connector: Format) -> None:
    """A schema names the columns that are decoded; the connector has a single schema."""
    schema = "offset bigint, value binary"
    frames = [
        reader_format.spark.read.format(reader_format.name)
        .options(**reader_format.options({"subscribe": ORDERS}))
        .schema(schema)
        for reader_format in (ours, connector)
    ]
    assert frames[0].load().count() == 12
    with pytest.raises(FAULTS, match="user-specified schema"):
        frames[1].load()
