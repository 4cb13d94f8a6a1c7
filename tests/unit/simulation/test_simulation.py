from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.harness.network import Network, NetworkFaults
from simulation.harness.small_scope import ScopeBreach, SeenTogether, explore
from simulation.harness.world import Life, World
from simulation.raft.bench import voter_set
from simulation.raft.log import (
    AppendOp,
    EpochRecord,
    LogImage,
    MemoryLog,
    RaftDisk,
    RaiseStartOp,
    StoredSnapshot,
    TruncateOp,
)
from simulation.raft.state import State, decode_snapshot, encode_snapshot
from tailrace.raft.ports import QuorumState, SnapshotFile
from tailrace.raft.rpc import LogEnd, SnapshotId


class TestWorld:
    def test_events_happen_in_the_order_of_time_and_then_of_scheduling(self) -> None:
        world = World(1)
        seen: list[tuple[int, str]] = []
        for delay_ms, what in ((5, "c"), (1, "a"), (1, "b")):
            world.after(delay_ms, partial(lambda what: seen.append((world.now_ms, what)), what))
        world.run(until_ms=10)
        assert seen == [(1, "a"), (1, "b"), (5, "c")]
        assert world.now_ms == 10

    def test_nothing_happens_in_a_life_that_is_over(self) -> None:
        world, seen, life = World(1), [], Life()
        world.after(5, lambda: seen.append("late"), life)
        world.after(1, lambda: setattr(life, "is_over", True))
        world.run(until_ms=10)
        assert seen == []

    def test_a_draw_depends_on_the_seed_and_on_what_is_drawn_for_alone(self) -> None:
        first, other = World(7), World(7)
        other.draw("something else", 1)
        assert [first.draw("loss", 1) for _ in range(3)] == [other.draw("loss", 1) for _ in range(3)]
        assert first.draw("loss", 2) != first.draw("loss", 3)
        assert World(8).draw("loss", 1) != World(7).draw("loss", 1)

    def test_draws_are_spread_evenly(self) -> None:
        world = World(3)
        draws = [world.draw("a", 1) for _ in range(2000)] + [world.draw("b", key) for key in range(2000)]
        assert all(0 <= draw < 1 for draw in draws)
        tenths = [sum(int(draw * 10) == tenth for draw in draws) for tenth in range(10)]
        assert min(tenths) > 300
        assert {world.between(3, 5, "c", 1) for _ in range(100)} == {3, 4, 5}


class TestNetwork:
    def delivered(self, faults: NetworkFaults, count: int = 200, *, world: World | None = None) -> list[int]:
        world = world or World(1)
        network = Network(world, faults)
        seen: list[int] = []
        for number in range(count):
            network.send(1, 2, partial(seen.append, number))
        world.run(until_ms=10_000)
        return seen

    def test_delivers_everything_once_by_default(self) -> None:
        assert sorted(self.delivered(NetworkFaults())) == list(range(200))

    def test_loses_and_repeats_at_the_rate_that_is_set(self) -> None:
        assert 60 < len(self.delivered(NetworkFaults(loss=0.5))) < 140
        assert 260 < len(self.delivered(NetworkFaults(duplication=0.5))) < 340

    def test_messages_overtake_each_other(self) -> None:
        assert self.delivered(NetworkFaults(max_delay_ms=50)) != list(range(200))

    def test_a_cut_is_one_way_unless_both_are_cut_and_stops_what_is_on_its_way(self) -> None:
        world = World(1)
        network, seen = Network(world, NetworkFaults()), []
        network.send(1, 2, lambda: seen.append("on its way"))
        network.block([1], [2])
        network.send(2, 1, lambda: seen.append("back"))
        network.send(1, 2, lambda: seen.append("there"))
        world.run(until_ms=10)
        network.heal()
        network.send(1, 2, lambda: seen.append("healed"))
        world.run(until_ms=20)
        assert seen == ["back", "healed"]


def entries(*epochs: int) -> tuple[EpochRecord, ...]:
    return tuple(EpochRecord(epoch, f"{epoch}") for epoch in epochs)


class TestMemoryLog:
    def test_a_crash_loses_what_was_not_flushed(self) -> None:
        disk = RaftDisk()
        log = MemoryLog(disk)
        log.do(AppendOp(entries(1, 1)))
        mark = log.mark()
        log.do(AppendOp(entries(2)))
        log.flush_to(mark)
        assert (log.end_offset, MemoryLog(disk).end_offset, log.unflushed) == (3, 2, 1)

    def test_a_truncation_that_was_not_flushed_did_not_happen(self) -> None:
        disk = RaftDisk()
        log = MemoryLog(disk)
        log.do(AppendOp(entries(1, 1, 1)))
        log.flush_to(log.mark())
        log.do(TruncateOp(1))
        assert (log.end_offset, MemoryLog(disk).end_offset) == (1, 3)

    @given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.data())
    @settings(max_examples=100)
    def test_epoch_ends_are_those_of_a_scan(self, epochs: list[int], data: st.DataObject) -> None:
        epochs.sort()
        image = LogImage(0, 0, entries(*epochs))
        start = data.draw(st.integers(0, len(epochs)))
        image.raise_start(start)
        image.truncate(data.draw(st.integers(start, len(epochs))))
        kept = epochs[start : image.end]
        assert [entry.epoch for entry in image.entries] == kept
        assert image.last_epoch == (epochs[image.end - 1] if image.end else 0)
        for epoch in range(8):
            below = [entry for entry in kept if entry <= epoch]
            expected = LogEnd(max(below), start + len(below)) if below else None
            assert image.end_for_epoch(epoch) == expected

    def test_a_newer_snapshot_takes_the_place_of_the_log_at_the_start(self) -> None:
        disk = RaftDisk()
        disk.log = LogImage(0, 0, entries(1, 1, 1))
        snapshot_id = SnapshotId(2, 3)
        disk.snapshots[snapshot_id] = StoredSnapshot(SnapshotFile(snapshot_id, 1, 0), b"x", None)
        log = MemoryLog(disk)
        assert (log.log_start_offset, log.end_offset, log.last_epoch) == (2, 2, 3)
        log.do(AppendOp(entries(4)))
        log.do(RaiseStartOp(3))
        assert (log.log_start_offset, log.last_epoch, disk.quorum_state) == (3, 4, QuorumState())


class TestTornWrites:
    def test_some_batches_of_what_was_fetched_are_on_the_disk(self) -> None:
        disk = RaftDisk()
        log = MemoryLog(disk)
        log.do(AppendOp(entries(1, 1, 2), is_one_batch=False))
        assert log.tearable == 3
        assert log.tear(2)
        assert disk.log.entries == list(entries(1, 1, 2)[:2])

    def test_one_batch_is_there_or_not(self) -> None:
        disk = RaftDisk()
        log = MemoryLog(disk)
        log.do(AppendOp(entries(1, 1)))
        assert log.tearable == 0
        assert not log.tear(1)
        assert disk.log.entries == []


@pytest.mark.parametrize("voters", [None, voter_set(1, 2, 3)])
def test_a_snapshot_with_any_byte_changed_is_refused(voters: object) -> None:
    snapshot = (SnapshotId(5, 2), State(5, b"12345678"), voters)
    data = encode_snapshot(*snapshot)  # type: ignore[arg-type]
    assert decode_snapshot(data) == snapshot
    for index in range(len(data)):
        with pytest.raises(ValueError, match="checksum"):
            decode_snapshot(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])


class Counters:
    """Two counters: a counter may be raised to 3; a world is the pair. A `harness.small_scope.Model`."""

    def __init__(self, *, limit: tuple[int, int] = (9, 9)) -> None:
        self.sometimes: set[str] = set()
        self._limit = limit

    def actions(self, world: tuple[int, int]) -> list[int]:
        return [which for which in (0, 1) if world[which] < 3]

    def take(self, world: tuple[int, int], action: int) -> tuple[int, int]:
        after = (world[0] + (action == 0), world[1] + (action == 1))
        assert after != self._limit, "the limit"
        if after == (3, 3):
            self.sometimes.add("the end")
        return after

    def fingerprint(self, world: tuple[int, int]) -> int:
        return 1 + world[0] + 4 * world[1]

    def name(self, action: int) -> str:
        return f"raise {action}"


class TestExplore:
    @pytest.mark.parametrize("processes", [1, 2])
    def test_every_world_is_visited_once(self, processes: int) -> None:
        found = explore(Counters(), (0, 0), max_states=100, processes=processes)
        assert (found.states, found.is_complete, found.sometimes) == (16, True, {"the end"})
        assert found.transitions == 24

    @pytest.mark.parametrize("processes", [1, 2])
    def test_a_breach_tells_the_way(self, processes: int) -> None:
        with pytest.raises(ScopeBreach, match="the limit") as caught:
            explore(Counters(limit=(2, 1)), (0, 0), max_states=100, processes=processes)
        assert sorted(caught.value.actions) == ["raise 0", "raise 0", "raise 1"]

    @pytest.mark.parametrize("processes", [1, 2])
    def test_a_search_that_is_cut_off_reports_it(self, processes: int) -> None:
        assert not explore(Counters(), (0, 0), max_states=5, processes=processes).is_complete

    def test_worlds_with_one_fingerprint_are_one(self) -> None:
        """The order of the two counters does not matter: 10 pairs of 16."""
        model = Counters()
        model.fingerprint = lambda world: 1 + min(world) + 4 * max(world)  # type: ignore[method-assign]
        assert explore(model, (0, 0), max_states=100).states == 10

    def test_processes_know_what_the_others_have_seen(self) -> None:
        seen = SeenTogether(1000)
        assert seen.claim(5)
        assert not seen.claim(5)
        assert seen.claim(5 + (1 << 40))  # the same place in the table
        assert not seen.claim(5 + (1 << 40))
        seen.close()
