"""Clients that administer a simulated cluster through any of its nodes, while the controller moves.

Laws: an answer is given once; what an answer says is committed, and true at the node that gave the answer; a topic
whose creation was acknowledged is there until its deletion is requested, and a topic whose deletion was acknowledged
does not come back; a request is carried out at most once (its name never stands for two topics); producer ids are given
away once; in the end all brokers serve.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from simulation.harness.breach import Breach
from simulation.harness.cluster import SimulatedCluster
from simulation.harness.plan import RunPlan
from simulation.quorum.broker_node import BrokerNode
from simulation.quorum.laws import check_topics
from simulation.quorum.node import active_controller
from tailrace.metadata.broker_commands import AllocateProducerIds, ProducerIdBlock
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.proofs import id_of_secret
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tailrace.raft.ports import RaftConfig
from tailrace.raft.rpc import Response
from tailrace.raft.snapshots import SnapshotTrigger
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.controller_link.broker_session import BrokerState

_CREATE_VERSION = 7
_DELETE_VERSION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan(RunPlan):
    """The plan of a run."""

    voters: int = 3
    observers: int = 1
    requests_per_s: float = 20
    crashes_per_s: float = 0.0
    isolations_per_s: float = 0.0


class BrokerCluster(SimulatedCluster[BrokerNode, BrokerPlan]):
    """Nodes with ids from 1 on: voters, then observers, every node a broker."""

    def __init__(self, seed: int, plan: BrokerPlan) -> None:
        super().__init__(seed, plan)
        secrets = [bytes([number]) * 16 for number in range(1, plan.voters + plan.observers + 1)]
        keys = [ReplicaKey(number, id_of_secret(secret)) for number, secret in enumerate(secrets, 1)]
        voters = VoterSet.of(Voter(key) for key in keys[: plan.voters])
        self.nodes = {
            key.id: BrokerNode(
                self.world,
                self.network,
                key=key,
                voters=voters,
                config=RaftConfig(election_backoff_max_ms=500),
                trigger=SnapshotTrigger(min_log_bytes=8000),
                longest_disk_ms=3,
                observer=self,
                find=lambda node_id: self.nodes[node_id],
                directory_secret=secret,
            )
            for key, secret in zip(keys, secrets, strict=True)
        }
        self.created: dict[str, TopicId] = {}
        """Topics whose creation was acknowledged, and whose deletion was not requested."""
        self.deleted: set[TopicId] = set()
        self.ids_of: dict[str, set[TopicId]] = {}
        """The topic ids that each name has ever had, anywhere."""
        self.blocks: list[ProducerIdBlock] = []
        self.acked = 0
        self.refused = 0

    # Observer of the nodes

    def started(self, node: Any) -> None:
        pass

    def answers(self, node: Any, request: Any, response: Response) -> None:
        pass

    def publishes(self, node: Any, part: str, snapshot: str) -> None:
        pass

    def stops(self, node: Any) -> None:
        pass

    def changed(self, node: Any, image: ClusterImage) -> None:
        for name, topic in image.topics.items():
            known = self.ids_of.setdefault(name, set())
            known.add(topic.topic_id)
            if len(known) > 1:
                raise Breach("a request is carried out at most once", f"{name} was created twice")

    # The run

    def _begin(self) -> None:
        world, plan, turns = self.world, self.plan, self.nemesis
        for node in self.nodes.values():
            self.revive_in(world.between(0, 50, "start", node.node_id), node)
        turns.repeat("requests", plan.requests_per_s, self._request)
        turns.repeat("producer ids", 2, self._allocate)
        turns.repeat("crashes", plan.crashes_per_s, self._crash)
        turns.repeat("isolations", plan.isolations_per_s, self._isolate)

    def calm(self) -> None:
        """End faults and requests, and start all nodes that are down."""
        self.nemesis.stop()
        self._calm()

    def _calm(self) -> None:
        super()._calm()
        for node in self.nodes.values():
            self.revive_in(100, node)

    def _any_node(self, name: str) -> BrokerNode:
        return self.nodes[self.world.choice(sorted(self.nodes), "node", name)]

    def leader(self) -> BrokerNode | None:
        return active_controller(self.nodes.values())

    # Clients

    def _request(self) -> None:
        node = self._any_node("client")
        if not node.is_up:
            return
        self.world.sometimes["asked a node that follows"] += not node.controller.is_active
        live = sorted(self.created)
        if live and self.world.chance(0.4, "kind", "request"):
            self.delete(node, self.world.choice(live, "name", "request"))
        else:
            self.create(node, f"topic-{self.next_number()}")

    def create(self, node: BrokerNode, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        request = CreateTopicsRequest(topics=(topic,), timeout_ms=20_000)
        node.ask(request, _CREATE_VERSION, partial(self._created, node, name))

    def _created(self, node: BrokerNode, name: str, answer: CreateTopicsResponse) -> None:
        (result,) = answer.topics
        if result.error_code:
            self._refused(result.error_code)
            return
        self.acked += 1
        topic_id = TopicId(result.topic_id)
        self.created[name] = topic_id
        if node.controller.image.topic_names.get(topic_id) != name:
            raise Breach("an answer is true where it is given", f"{name} is not known to node {node.key.id}")
        if self.nemesis.is_chaos and self.world.chance(0.3, "fleeting", "request"):
            # While what was sent to have it created may still be on its way.
            self.delete(node, name)

    def delete(self, node: BrokerNode, name: str) -> None:
        topic_id = self.created.pop(name)
        request = DeleteTopicsRequest(topics=(DeleteTopicState(name=None, topic_id=topic_id),), timeout_ms=20_000)
        node.ask(request, _DELETE_VERSION, partial(self._deleted, node, topic_id))

    def _deleted(self, node: BrokerNode, topic_id: TopicId, answer: DeleteTopicsResponse) -> None:
        (result,) = answer.responses
        if result.error_code:
            self._refused(result.error_code)
            return
        self.acked += 1
        self.deleted.add(topic_id)
        if topic_id in node.controller.image.topic_names:
            raise Breach("an answer is true where it is given", f"{result.name} is still there")

    def _refused(self, code: int) -> None:
        self.refused += 1
        self.world.sometimes[f"refused: {ErrorCode(code).name}"] += 1

    def _allocate(self) -> None:
        node = self._any_node("producer ids")
        if not node.is_up or node.session.broker_epoch < 0:
            return
        command = AllocateProducerIds(broker_id=BrokerId(node.key.id), broker_epoch=node.session.broker_epoch)

        def allocated(answer: Any) -> None:
            if isinstance(answer, KafkaError):
                self._refused(answer.code)
            else:
                self.blocks.append(answer)

        node.do(lambda: node.link.channel.submit(command, allocated))

    # Nemesis

    def _crash(self) -> None:
        node = self._any_node("crash")
        if self.world.chance(0.5, "crash", "leader"):
            node = self.leader() or node
        if node.is_up:
            self.world.sometimes["active controller crashed"] += node.controller.is_active
            node.crash()
            self.revive_in(self.world.between(10, 4000, "down", node.node_id), node)

    def _isolate(self) -> None:
        self.network.heal()
        if self.world.chance(0.5, "kind", "isolation") and (leader := self.leader()) is not None:
            self.world.sometimes["active controller isolated"] += 1
            self.network.separate([leader.key.id], self.nodes)

    # The end

    def _is_at_rest(self) -> bool:
        leader = self.leader()
        if leader is None or any(not node.is_up for node in self.nodes.values()):
            return False
        image = leader.controller.image
        return all(
            node.controller.image == image
            and not len(node.link.requests)
            and not len(node.link.forwarding)
            and node.session.state is BrokerState.RUNNING
            and not image.brokers[BrokerId(node.key.id)].fenced
            for node in self.nodes.values()
        )

    def _check_end(self) -> None:
        leader = self.leader()
        assert leader is not None
        check_topics(leader.controller.image, created=self.created, deleted=self.deleted)
        given = sorted((block.first, block.first + block.size) for block in self.blocks)
        if any(end > start for (_, end), (start, _) in pairwise(given)):
            raise Breach("producer ids are given away once", f"{given}")

    @property
    def progress(self) -> str:
        return f"{self.acked} acked"
