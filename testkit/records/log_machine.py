"""A log for models: it is closed, crashes or loses power, and is opened again."""

from typing import Final

from hypothesis.stateful import RuleBasedStateMachine, rule

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log
from tailrace.testing.disk import SimulatedDisk

DIRECTORY: Final = "/data/orders-0"


class LogMachine(RuleBasedStateMachine):
    """A log on a simulated disk, with the checkpoints of its offsets. A model begins with `begin_log`."""

    config: TopicConfig
    now_ms = 0
    log: Log

    def begin_log(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.recovery_point = self.durable_start = self.first_dirty = 0
        self.open()

    def open(self, *, clean: bool = False) -> None:
        self.log = Log.open(
            DIRECTORY,
            files=self.disk,
            config=self.config,
            now_ms=self.now_ms,
            clean=clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.durable_start,
            first_dirty_offset=self.first_dirty,
        )
        self.take_what_is_there()

    def take_what_is_there(self) -> None:
        """Compare the opened log with the records that must be there; the model forgets records that are gone."""

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.recovery_point, self.durable_start = self.log.log_end_offset, self.log.log_start_offset
        if self.config.is_compacted:
            self.first_dirty = self.log.compactions.first_dirty_offset
        self.open(clean=True)
        assert self.log.recovery.clean

    @rule()
    def crash(self) -> None:
        """Start the process again; the disk has everything that was written."""
        self.open()

    @rule()
    def power_cut(self) -> None:
        self.disk.power_cut()
        self.disk.reboot()
        self.open()
