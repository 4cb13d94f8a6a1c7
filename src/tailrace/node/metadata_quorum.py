"""The metadata quorum on one node: its replica of the log, its controller, and their connections to other nodes.

Every node has a replica: as the only voter, as a voter of several, or as an observer. The replica has a flush thread
of its own, so that a vote does not wait for the records of topics.
"""

import asyncio
import gc
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import random
from typing import Any, Final

from tailrace.metadata.feature_levels import METADATA_VERSION_FEATURE
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.net.connection import Address
from tailrace.net.listener import Listener
from tailrace.net.turns import Turns
from tailrace.node.controller_places import ControllerPlaces
from tailrace.node.data_directory import new_cluster_id
from tailrace.node.event_loop import LoopClock
from tailrace.node.flush_thread import FlushThread
from tailrace.node.founding import FoundedQuorum, Founding, warn_if_wiped
from tailrace.node.founding_users import FoundingUsers
from tailrace.node.peers import Peers
from tailrace.node.settings.broker_config import controller_machine, founding_settings
from tailrace.node.settings.config import NodeConfig
from tailrace.raft.roles import Follower
from tailrace.raft.voters import ReplicaKey, VoterListener
from tailrace.server.assembly.controller import founder_dispatcher
from tailrace.server.assembly.metadata_replica import (
    MetadataReplica,
    MetadataReplicaConfig,
    MetadataReplicaPorts,
    open_metadata_log,
)
from tailrace.server.ports import QuorumRequest
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.duties import LeaderBalanceConfig
from tailrace.server.quorum.host import QuorumHost
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.storage import FileSystem
from tailrace.storage.checkpoints import META_PROPERTIES, MetaProperties, write_meta_properties


class Collector:
    """Python's garbage collector in this process, paused while long work is under way.

    Loading metadata, or acting on the loss of a broker, makes hundreds of thousands of objects without a cycle. The
    collector would look through the objects again and again, for up to half a second at a time.
    """

    def __init__(self) -> None:
        self._works = 0

    def long_work(self, has_begun: bool) -> None:
        """Note that long work begins or ends. After its end the collector does not examine the present objects
        again."""
        if has_begun:
            self._works += 1
            gc.disable()
            return
        self._works -= 1
        if self._works == 0:
            gc.freeze()
            gc.enable()


_LOOK_SECONDS: Final = 0.002
_SAY_SECONDS: Final = 5.0
_LAST_WORD_SECONDS: Final = 0.2
_LEAVE_SECONDS: Final = 2.0
_LAST_FLUSH_SECONDS: Final = 30.0
_PEER_TIMEOUT_SLACK_MS: Final = 1_000

_logger = logging.getLogger("tailrace.node")


class MetadataQuorum:
    """The quorum on one node: `find`, then `start`, once; `leave` and `close` at the end."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        files: FileSystem,
        directory: str,
        identity: MetaProperties,
        clock: LoopClock,
        turns: Turns,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Opens the log. Raises CorruptRecords that names the damage, and StorageError."""
        self._config = config
        self._files = files
        self._directory = directory
        self._identity = identity
        self._clock = clock
        self._turns = turns
        self._on_fatal = on_fatal
        loop = self._loop = asyncio.get_running_loop()
        self._key = ReplicaKey(config.node_id, bytes(identity.directory_id or ZERO_TOPIC_ID))
        self._metadata_directory = MetadataDirectory(directory, files=files)
        self._founding_users = FoundingUsers(directory, files=files)
        self._log = self._open_log()
        self._replica: MetadataReplica | None = None
        self._places = ControllerPlaces(
            node_id=config.node_id,
            founders=config.quorum.founders,
            places=config.quorum.places,
            voters=lambda: None if self._replica is None else self._replica.host.node.voters,
        )
        self.peers = Peers(
            address_of=self._places.address_of,
            turns=turns,
            client_id=f"node-{config.node_id}",
            timeout_ms=config.quorum.raft.request_timeout_ms + _PEER_TIMEOUT_SLACK_MS,
            tls=config.tls_contexts(config.controller_listener, is_server=False),
            sasl=config.sasl.of_controllers,
        )
        self.flush_thread = FlushThread(
            directory=self._metadata_directory.path, call_soon=loop.call_soon, post=clock.post, on_failure=on_fatal
        )

    def _open_log(self) -> QuorumLog:
        log = open_metadata_log(
            self._metadata_directory,
            segment_bytes=self._config.integer("metadata.log.segment.bytes"),
            now_ms=self._clock.now_ms(),
        )
        if self._identity.cluster_id is None and (log.end_offset or log.founding_voters):
            raise CorruptRecords(
                f"{META_PROPERTIES} in {self._directory} has no cluster.id, and the log beside it is a cluster's:"
                " restore it from a copy"
            )
        return log

    @property
    def replica(self) -> MetadataReplica:
        """This node's replica, once the quorum is found."""
        assert self._replica is not None, "the quorum has not been found yet"
        return self._replica

    @property
    def host(self) -> QuorumHost:
        """The host of the replica, once the quorum is found."""
        return self.replica.host

    @property
    def controller(self) -> QuorumController:
        """The metadata on this node, once the quorum is found."""
        return self.replica.controller

    @property
    def known_image(self) -> ClusterImage | None:
        """The metadata as far as this node knows it; None before the quorum is found."""
        return None if self._replica is None else self._replica.controller.image

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, once the quorum is found."""
        assert self._identity.cluster_id is not None, "the quorum has not been found yet"
        return self._identity.cluster_id

    # Coming to it

    async def find(self, listeners: Sequence[Listener]) -> None:
        """Found or join the quorum, and make this node's replica and controller. Meanwhile `listeners` answer with this
        node's identity. Raises KafkaError."""
        waiting = founder_dispatcher(self._key, on_broken_invariant=self._on_fatal)
        for listener in listeners:
            listener.on_frame = waiting.on_frame
            await listener.start()
        settings = self._config.quorum
        finding = Founding(settings, key=self._key, log=self._log, peers=self.peers, places=self._places.names)
        stored = self._metadata_directory.read_quorum_state()
        votes_alone = stored.voters == (self._key.id,) and self._log.end_offset > 0 and not self._log.voters_in_log
        found = await finding.find(self._identity.cluster_id, new_cluster_id(), votes_alone=votes_alone)
        self._keep(found)
        self._assemble(found, listeners)

    def _keep(self, found: FoundedQuorum) -> None:
        """Write the found quorum to the disk. The cluster id comes first, since a directory with voters must have their
        cluster's id."""
        if self._identity.cluster_id is None:
            self._identity = replace(self._identity, cluster_id=found.cluster_id)
            write_meta_properties(self._files, self._directory, self._identity)
        if len(found.voters) and self._log.founding_voters is None and not self._log.voters_in_log:
            self._log.found(found.voters, now_ms=self._clock.now_ms())
            _logger.info("event=quorum-founded cluster=%s voters=%s", found.cluster_id, _names(found.voters.keys))

    def _assemble(self, found: FoundedQuorum, listeners: Sequence[Listener]) -> None:
        config = self._config
        for stated in self._log.voters_in_log[-1:]:
            warn_if_wiped(self._key, stated.voters)
        self._replica = MetadataReplica(
            MetadataReplicaConfig(
                key=self._key,
                directory_secret=self._identity.directory_secret,
                cluster_id=found.cluster_id,
                voters=found.voters,
                bootstrap_ids=self._places.names,
                endpoints=tuple(self._own_endpoint(listener) for listener in listeners),
                protocols={each.name: config.addresses.protocol_of(each.name) for each in listeners},
                is_controller=config.quorum.is_controller,
                raft=config.quorum.raft,
                snapshot_trigger=config.quorum.snapshot_trigger,
                leader_balance=config.fill(LeaderBalanceConfig),
            ),
            ports=MetadataReplicaPorts(
                clock=self._clock,
                disk=self.flush_thread,
                peer=self,
                jitter=random,
                random_bytes=secrets.token_bytes,
                on_long_work=Collector().long_work,
                on_storage_failed=self._storage_failed,
                on_fatal=self._on_fatal,
            ),
            machine=controller_machine(
                config,
                random_bytes=secrets.token_bytes,
                founding_settings=founding_settings(config),
                founding_users=self._founding_users.read(),
            ),
            directory=self._metadata_directory,
            log=self._log,
        )
        self.peers.on_refused = self._refused

    def _refused(self, node_id: int, address: Address) -> None:
        if self._places.is_present(node_id, address):
            self.controller.node_refuses(node_id)

    def _own_endpoint(self, listener: Listener) -> VoterListener:
        addresses, founder = self._config.addresses, self._config.quorum.founders.get(self._key.id)
        if founder is not None and not addresses.is_advertised(listener.name):
            return VoterListener(listener.name, founder.host, founder.port)
        endpoint = addresses.address_of(listener.name, taken_port=listener.addresses[0][1])
        return VoterListener(endpoint.name, endpoint.host, endpoint.port)

    def start(self) -> None:
        """Take part from now on."""
        self.replica.start()

    def forget_founding_users(self) -> None:
        """Remove the file of founding users if the metadata log is founded, as far as this node knows."""
        if METADATA_VERSION_FEATURE in self.controller.image.features:
            self._founding_users.remove()

    def _storage_failed(self, fault: KafkaError) -> None:
        """Stop this node after the failure of its metadata log, since the node gets no further changes; but not before
        other nodes know that it no longer leads. The next start reads the log from the disk again."""
        self._loop.call_later(_LAST_WORD_SECONDS, self._on_fatal, fault)

    async def caught_up(self) -> None:
        """Return when this node knows the committed records of its present log. If this broker ever registered, the
        registration is among the records.

        Raises KafkaError if the log cannot be used, for example a log of a newer release.
        """
        own_end = self._log.end_offset
        say_again = self._loop.time() + _SAY_SECONDS
        while not self._knows_up_to(own_end):
            if self._loop.time() >= say_again:
                say_again = self._loop.time() + _SAY_SECONDS
                self._say_no_controller()
            await asyncio.sleep(_LOOK_SECONDS)

    def _knows_up_to(self, own_end: int) -> bool:
        """Whether every record below `own_end` is applied, except records that were cut off by the leader's decision.

        The high watermark alone is not enough: until the leader states a higher value, the high watermark is only the
        end of a snapshot, on this node or on a leader that has just been elected.
        """
        if self.host.failure is not None:
            raise self.host.failure
        if self.controller.is_active:
            return True
        node = self.host.node
        if not isinstance(node.role, Follower) or node.role.leader_high_watermark < 0:
            return False
        return self.controller.applied_end_offset >= max(node.high_watermark or 0, min(own_end, self._log.end_offset))

    def _say_no_controller(self) -> None:
        node = self.host.node
        addresses = (self._places.address_of(name) for name in self._places.names)
        _logger.warning(
            "event=no-controller node=%d epoch=%d leader=%d asked=%s",
            self._key.id,
            node.epoch,
            node.leader_id,
            ",".join(str(address) for address in addresses if address is not None),
        )

    # The other nodes

    def address_of(self, node_id: int) -> Address | None:
        """The address at which this node looks for this controller."""
        return self._places.address_of(node_id)

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request, see `server.ports.Peer.send`. Before the replica of the metadata log has found the leader,
        only the replica's own requests are sent; other requests get no answer until then."""
        places, is_search = self._places, isinstance(request, QuorumRequest)
        address = places.address_of(node_id) if is_search else places.found(node_id)

        def replied(reply: Any) -> None:
            if is_search:
                places.on_response(node_id, address, reply)
            on_reply(reply)

        self.peers.send_to(address, node_id, request, replied, oldest_version=oldest_version, timeout_ms=timeout_ms)

    # Leaving

    async def leave(self) -> None:
        """Let another voter lead, if there is another voter, and wait for the flushes that have begun."""
        self._turns.run(self.replica.stop)
        left = asyncio.Event()
        self._turns.run(lambda: self.host.shut_down(left.set))
        try:
            await asyncio.wait_for(left.wait(), _LEAVE_SECONDS)
        except TimeoutError:
            _logger.warning("event=quorum-left-unheard node=%d", self._key.id)
        await self.flush_thread.idle(_LAST_FLUSH_SECONDS)

    def close(self) -> None:
        """Leave the quorum, and close the log. Also needed if only `__init__` was called."""
        self.peers.close()
        self.flush_thread.stop()
        try:
            if self._replica is not None:
                self._replica.close()
            else:
                self._log.close()
        except KafkaError as fault:
            _logger.error("event=metadata-log-not-closed fault=%s", fault)


def _names(keys: Sequence[ReplicaKey]) -> str:
    return ",".join(str(key.id) for key in keys)
