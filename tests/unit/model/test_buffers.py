"""Memory that is used again, but never while a view of it exists."""

from tailrace.model.buffers import has_no_views, new_buffer


def test_a_view_is_noticed_for_as_long_as_it_lives_and_asking_moves_nothing() -> None:
    buffer = new_buffer(1 << 20)
    assert (len(buffer), has_no_views(buffer)) == (1 << 20, True)
    view = memoryview(buffer)[5:6]
    assert not has_no_views(buffer)
    assert len(buffer) == 1 << 20
    del view
    assert has_no_views(buffer)
