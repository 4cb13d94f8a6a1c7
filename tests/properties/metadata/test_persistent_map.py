"""A persistent map is a dict, order included, and no version of it ever changes."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.persistent_map import MapDraft

keys = st.integers(0, 200)
changes = st.lists(st.tuples(keys, st.none() | st.integers(0, 5)), max_size=60)
"""None takes the key out."""
starts = st.lists(keys, unique=True).map(lambda found: dict.fromkeys(found, -1)) | st.just(
    dict.fromkeys(range(200), -1)
)


def changed(before: Mapping[int, int], batch: list[tuple[int, int | None]], model: dict[int, int]) -> Mapping[int, int]:
    draft = MapDraft(before)
    for key, value in batch:
        if value is not None:
            draft[key] = model[key] = value
        elif key in draft:
            assert draft.pop(key) == model.pop(key)
        assert draft.get(key) == model.get(key)
        assert (key in draft, len(draft)) == (key in model, len(model))
    assert list(draft.values()) == list(model.values())
    return draft.finish()


@given(starts, st.lists(changes, max_size=8))
def test_each_version_is_the_dict_that_the_same_changes_make(
    start: dict[int, int], batches: list[list[tuple[int, int | None]]]
) -> None:
    versions: list[tuple[Mapping[int, int], dict[int, int]]] = [(start, dict(start))]
    for batch in batches:
        before, model = versions[-1]
        model = dict(model)
        versions.append((changed(before, batch, model), model))
    for version, model in versions:
        assert list(version.items()) == list(model.items())
        assert list(version) == list(version.keys()) == list(model)
        assert list(version.values()) == list(model.values())
        assert len(version) == len(model)
        assert version == model
        assert all(version[key] == version.get(key) == value for key, value in model.items())
        gone = set(range(201)) - set(model)
        assert all(key not in version and version.get(key, "none") == "none" for key in gone)


def test_a_change_of_a_large_map_copies_a_small_part_of_it() -> None:
    large: Mapping[int, int] = dict.fromkeys(range(100_000), 0)
    draft = MapDraft(large)
    draft[5] = 1
    version = draft.finish()
    again = MapDraft(version)
    del again[6]
    next_version = again.finish()
    assert (version[5], next_version[5], large[5]) == (1, 1, 0)
    assert 6 in version
    assert 6 not in next_version
    shared = [instance.draft_parts()[0] for instance in (version, next_version)]  # type: ignore[attr-defined]
    assert shared[0] is shared[1] is large


def test_a_draft_without_writes_is_the_version_before() -> None:
    before = {1: 1}
    assert MapDraft(before).finish() is before
