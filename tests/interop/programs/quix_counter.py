"""Counts the records of each key exactly once: PACKAGES BOOTSTRAP SOURCE TARGET STATE_DIRECTORY."""

import os
import sys
import threading

sys.path.insert(0, sys.argv[1])  # before the packages of the tests' environment

from quixstreams import Application, State  # type: ignore[import-not-found]


def _end_with_the_test() -> None:
    sys.stdin.read()
    os._exit(1)


threading.Thread(target=_end_with_the_test, daemon=True).start()
_, _, bootstrap, source, target, state_directory = sys.argv
application = Application(
    broker_address=bootstrap,
    consumer_group="quix-counter",
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    commit_interval=0.2,
    state_dir=state_directory,
    consumer_extra_config={"session.timeout.ms": 6_000},
)
words = application.dataframe(application.topic(source, key_deserializer="str", value_deserializer="str"))


def count(value: str, state: State) -> int:
    number = int(state.get("count", 0)) + 1
    state.set("count", number)
    return number


counts = words.apply(count, stateful=True)
counts.to_topic(application.topic(target, key_serializer="str", value_serializer="int"))
application.run()
