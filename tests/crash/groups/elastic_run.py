"""A run of an elastic group: members of every client come, leave, stop and die, and brokers die, by a seed."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from crash.groups.elastic_member import FAN_OUT, GROUP, TOPIC
from crash.groups.elastic_processes import ElasticProcess, MemberFactory, kinds
from crash.groups.elastic_producer import NumberingProducer
from crash.replicas.replicated_load import wait_until_whole
from tailrace.client.blocking import Admin, Consumer, NewTopic
from tailrace.coordinators.groups.records import TransactionEnd, decode_record
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.model.resource_settings import SESSION_TIMEOUT
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from testkit.verdicts.elastic_verdict import ElasticEvidence
from testkit.verdicts.slot_ownership import CoordinatorRecord

PARTITIONS: Final = 2
SESSION_S: Final = 6.0
CONFIG: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.consumer.session.timeout.ms": str(round(SESSION_S * 1_000)),
}
_QUIET_SESSION: Final = {SESSION_TIMEOUT: "45000"}
"""Without faults no member is removed, though the machine may keep a process waiting."""
_GROUP_RESOURCE: Final = 32
LEAST_MEMBERS, MOST_MEMBERS = 4, 7
PAUSE_S: Final = (0.5, 3.0)
FIRST_PAUSE_S: Final = (0.2, 1.0)
"""Before the faults of which each comes once."""
QUIET_PAUSE_S: Final = (1.0, 8.0)
STOP_S: Final = (SESSION_S + 1, SESSION_S + 4)
DRAINED_S: Final = 240.0
MOST_OF_A_ZOMBIE: Final = 1_000
"""The records that a member handles in some seconds: a heartbeat has an answer by then on a busy machine too."""
_LOG: Final = TopicPartition(GROUP_OFFSETS_TOPIC, 0)

JOIN, LEAVE, STOP, KILL = "join", "leave in order", "SIGSTOP", "kill -9 of a member"
KILL_COORDINATOR, KILL_LEADER, KILL_BROKER = (
    "kill -9 of the coordinator",
    "kill -9 of a leader",
    "kill -9 of a broker",
)
WEIGHTS: Final = {JOIN: 3, LEAVE: 3, STOP: 2, KILL: 3, KILL_COORDINATOR: 1, KILL_LEADER: 1, KILL_BROKER: 1}


class ElasticRun:
    """The cluster, the producer and the members, from the begin to the evidence."""

    def __init__(self, directory: Path, chance: random.Random, stack: ExitStack) -> None:
        """`stack` closes the run."""
        self._chance = chance
        self.faults: Counter[str] = Counter()
        self.cluster = stack.enter_context(Cluster(brokers=3, config=CONFIG))
        self._servers = self.cluster.bootstrap_servers
        self._admin = stack.enter_context(Admin(self._servers))
        self._admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)])
        self._factory = MemberFactory(self._servers, directory)
        stack.callback(self._factory.close)
        self._members: list[ElasticProcess] = []
        self._stopped: list[tuple[float, ElasticProcess]] = []
        """The members that SIGSTOP has stopped, with the times at which they go on."""
        self._quiet_from_ns = 0
        self._producer = NumberingProducer(self._servers, random.Random(chance.random()))
        for kind in kinds():
            self._members.append(self._factory.start(kind))

    # faults

    def inject(self, seconds: float) -> None:
        """Inject faults for so long, each kind once at least."""
        due = list(WEIGHTS)
        self._chance.shuffle(due)
        until_s = time.monotonic() + seconds
        self._wait_until_shared()
        while due or time.monotonic() < until_s:
            time.sleep(self._chance.uniform(*(FIRST_PAUSE_S if due else PAUSE_S)))
            self._let_go_on()
            for member in self._members:
                member.check()
            fault = due.pop() if due else self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.faults.update(self._inject(fault))

    def _inject(self, fault: str) -> list[str]:
        """Inject the fault, or a change that is possible; the changes that were made."""
        of_members = {JOIN: self._join, LEAVE: self._leave, STOP: self._stop, KILL: self._kill}
        if fault in of_members:
            return of_members[fault]()
        self._kill_broker(fault)
        return [fault]

    def _free(self) -> list[ElasticProcess]:
        return [member for member in self._members if not member.is_stopped]

    def _join(self) -> list[str]:
        if len(self._members) >= MOST_MEMBERS:
            return self._leave()
        there = Counter(member.kind for member in self._members)
        kind = min(kinds(), key=lambda name: (there[name], self._chance.random()))
        self._members.append(self._factory.start(kind))
        return [JOIN]

    def _leave(self) -> list[str]:
        if len(self._members) <= LEAST_MEMBERS:
            return self._join()
        member = self._chance.choice(self._free())
        self._members.remove(member)
        member.ask_to_leave()
        return [LEAVE]

    def _stop(self) -> list[str]:
        if len(self._stopped) > 1:
            return []
        member = self._chance.choice(self._free())
        member.stop()
        self._stopped.append((time.monotonic() + self._chance.uniform(*STOP_S), member))
        return [STOP]

    def _let_go_on(self) -> None:
        for due in [due for due in self._stopped if due[0] <= time.monotonic()]:
            self._stopped.remove(due)
            due[1].go_on()

    def _kill(self) -> list[str]:
        member = self._chance.choice(self._free())
        member.kill()
        self._members[self._members.index(member)] = self._factory.start(member.kind)
        return [KILL]

    def _kill_broker(self, fault: str) -> None:
        broker = self._chance.choice(self.cluster.broker_ids)
        if fault != KILL_BROKER:
            name = _LOG if fault == KILL_COORDINATOR else TopicPartition(TOPIC, self._chance.randrange(PARTITIONS))
            (topic,) = self._admin.describe_topics([name.topic])
            leader = topic.partitions[name.partition].leader
            broker = leader if leader in self.cluster.broker_ids else broker
        self.cluster.kill(broker)
        time.sleep(self._chance.uniform(0, 2))
        self.cluster.start(broker)

    # times without faults

    def be_quiet(self, seconds: float) -> None:
        """Let members come and leave in order, without a fault, for so long."""
        self._settle()
        due = [LEAVE, JOIN]
        until_s = time.monotonic() + seconds
        self._quiet_from_ns = time.monotonic_ns()
        while due or time.monotonic() < until_s:
            time.sleep(self._chance.uniform(*(FIRST_PAUSE_S if due else QUIET_PAUSE_S)))
            for member in self._members:
                member.check()
            changes = self._inject(due.pop() if due else self._chance.choice((JOIN, LEAVE)))
            self.faults.update(f"{change}, without faults" for change in changes)

    def _settle(self) -> None:
        """Wait until all nodes and members are whole, and nothing is left to do."""
        while self._stopped:
            time.sleep(0.1)
            self._let_go_on()
        self._admin.alter_configs(_GROUP_RESOURCE, GROUP, _QUIET_SESSION)
        wait_until_whole(self._servers, TOPIC)
        wait_until_whole(self._servers, GROUP_OFFSETS_TOPIC)
        self._wait_until_shared()
        self._drain(self._producer.pause())
        self._producer.resume()

    def _wait_until_shared(self) -> None:
        """Wait until the group has these members and no others, and each of them has its slots."""
        known: list[str] = []

        def is_shared() -> bool:
            (group,) = self._admin.describe_groups([GROUP])
            known[:] = [group.state, *sorted(member.client_id for member in group.members)]
            names = sorted(member.name for member in self._members)
            return known == ["Stable", *names] and all(member.assignment for member in group.members)

        def tries() -> bool:
            try:
                return is_shared()
            except KafkaError as fault:
                known[:] = [str(fault)]
                return False

        wait_until(tries, lambda: f"a stable group of {[member.name for member in self._members]}: {known}")

    def _drain(self, ends: Mapping[int, int]) -> None:
        """Wait until the group has committed up to these ends, or has had its time: the verdict says what is left."""
        until_s = time.monotonic() + DRAINED_S
        while time.monotonic() < until_s:
            committed = {name.partition: at.offset for name, at in self._admin.group_offsets(GROUP).items()}
            if all(committed.get(slot, 0) >= end for slot, end in ends.items()):
                return
            time.sleep(0.2)

    # the end

    def finish(self) -> ElasticEvidence:
        """End the producer, let the group end its work and leave in order; gather the evidence."""
        self._drain(self._producer.pause())
        produced = self._producer.stop()
        for member in self._members:
            member.ask_to_leave()
        for process in self._factory.started:
            if process.killed_ns is None:
                process.wait()
        end_ns = time.monotonic_ns()
        return ElasticEvidence(
            fan_out=FAN_OUT,
            produced=produced,
            ledgers={process.name: process.ledger() for process in self._factory.started},
            coordinator=self._coordinator_log(),
            killed={each.name: each.killed_ns for each in self._factory.started if each.killed_ns is not None},
            stopped={each.name: each.stops for each in self._factory.started if each.stops},
            quiet=(self._quiet_from_ns, end_ns),
            most_in_hand=MOST_OF_A_ZOMBIE,
        )

    def _coordinator_log(self) -> list[CoordinatorRecord]:
        """The records of the group: the whole log of its coordinator."""
        wall_ns = time.time_ns() - time.monotonic_ns()
        end = self._admin.list_offsets({_LOG: -1})[_LOG].offset
        found: list[CoordinatorRecord] = []
        next_offset = 0
        with Consumer(self._servers) as reader:
            reader.assign([_LOG])
            reader.seek(_LOG, 0)
            while next_offset < end:
                for record in reader.poll(5.0):
                    assert record.offset == next_offset, f"the log has no record at {next_offset}: it was compacted"
                    next_offset += 1
                    decoded = decode_record(record.key, record.value)
                    if decoded is not None and not isinstance(decoded, TransactionEnd) and decoded.group_id == GROUP:
                        found.append(CoordinatorRecord(record.timestamp * 10**6 - wall_ns, decoded))
        return found
