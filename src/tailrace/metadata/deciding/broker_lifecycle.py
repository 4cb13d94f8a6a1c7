"""The records of registration, heartbeats, shutdown and removal of brokers (pure but for `Heartbeats`).

A broker is registered, then fenced until it has applied its own registration, then alive; a controlled shutdown takes
its leaderships away before it may stop. The changes of partitions are derived, see `derive`: the controller adds the
count and checksum of the changes to the record, which is the only record of its decision.
"""

from tailrace.metadata.broker_commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    CarriedOut,
    RegisterBroker,
    RegisterController,
    UnregisterBroker,
)
from tailrace.metadata.commands import CommandOfBroker
from tailrace.metadata.deciding.state_changes import departure_records
from tailrace.metadata.heartbeats import Heartbeats
from tailrace.metadata.image import BrokerImage, ClusterImage, SupportedFeature
from tailrace.metadata.records.brokers import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    controller_registration,
    recorded_endpoints,
    recorded_features,
)
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.senders import check_secret
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.machines import Decision


class BrokerLifecycle:
    """The brokers of one image, in the view of the active controller."""

    def __init__(self, image: ClusterImage, heartbeats: Heartbeats, now_ms: int) -> None:
        self._image = image
        self._heartbeats = heartbeats
        self._now_ms = now_ms

    def sender(self, command: CommandOfBroker) -> BrokerImage:
        """The broker in whose name a command was given.

        Raises the errors of `known`; CLUSTER_AUTHORIZATION_FAILED if the command does not prove that the broker has
        sent it. The broker epoch is no proof: any client may read or guess this small number.
        """
        broker = self.known(command.broker_id, command.broker_epoch)
        check_secret(f"broker {broker.broker_id}", broker.incarnation_id, command.secret)
        return broker

    def known(self, broker_id: BrokerId, broker_epoch: int) -> BrokerImage:
        """The broker in this registration. Raises KafkaError BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        broker = self._image.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} has been registered again with epoch {broker.broker_epoch}, not {broker_epoch}",
            )
        return broker

    def register(self, command: RegisterBroker, broker_epoch: int) -> Decision[MetadataRecord, BrokerRegistered]:
        """Raises KafkaError DUPLICATE_BROKER_REGISTRATION, UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED."""
        check_secret(f"broker {command.broker_id}", command.incarnation_id, command.secret)
        for directory_id in command.log_directories:  # to name a directory is a claim to have its acknowledged records
            check_secret(f"a directory of broker {command.broker_id}", directory_id, command.directory_secret)
        self._check_features(f"broker {command.broker_id}", command.features)
        before = self._image.brokers.get(command.broker_id)
        if before is not None and before.incarnation_id == command.incarnation_id:
            # The same process asks again after a lost answer.
            return Decision(records=(), response=BrokerRegistered(broker_epoch=before.broker_epoch))
        if before is not None and before.is_alive and not self._may_follow(command, before):
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"another process is broker {command.broker_id}, and sent a heartbeat within the last"
                f" {self._heartbeats.session_timeout_ms} ms; give this one another node.id, or wait",
            )
        self._heartbeats.touch(command.broker_id, self._now_ms)
        record = _registration(command, broker_epoch, before)
        return Decision(records=(record,), response=BrokerRegistered(broker_epoch=broker_epoch))

    def _may_follow(self, command: RegisterBroker, before: BrokerImage) -> bool:
        """Whether the broker may be registered anew though its registration is alive.

        A controller that has just become active has received no heartbeat. If all brokers were killed together with the
        previous controller, the restarted brokers need not wait until their old sessions end: a restarted broker has
        the same directories as before, and proves that. Any other process waits: otherwise a client could take over the
        registration of a live broker.
        """
        if self._heartbeats.has_session(command.broker_id, self._now_ms):
            return False
        is_its_next_start = set(before.log_directories) <= set(command.log_directories)
        return is_its_next_start or not self._heartbeats.is_awaited(command.broker_id, self._now_ms)

    def heartbeat(self, command: BrokerHeartbeat, next_offset: int) -> Decision[MetadataRecord, BrokerStanding]:
        """Raises the errors of `sender`."""
        broker = self.sender(command)
        self._heartbeats.touch(broker.broker_id, self._now_ms, command.metadata_offset)
        is_caught_up = command.metadata_offset >= broker.broker_epoch
        if command.wants_shutdown:
            return self._on_its_way_out(broker, next_offset, is_caught_up=is_caught_up)
        if command.wants_fence and not broker.fenced:
            return _standing(self.fence(broker), is_caught_up=is_caught_up, is_fenced=True)
        # A heartbeat that a broker sent before its shutdown may come late, when its registration has ended.
        has_ended = broker.in_controlled_shutdown or self._heartbeats.has_ended(broker.broker_id, broker.broker_epoch)
        may_lead = not command.wants_fence and not has_ended
        if broker.fenced and is_caught_up and may_lead:
            return _standing(self.unfence(broker), is_caught_up=True, is_fenced=False)
        return _standing((), is_caught_up=is_caught_up, is_fenced=broker.fenced)

    def _on_its_way_out(
        self, broker: BrokerImage, next_offset: int, *, is_caught_up: bool
    ) -> Decision[MetadataRecord, BrokerStanding]:
        """The answer to a broker that wants to stop: the broker has to go on until it leads nothing and the other
        brokers know the new leaders."""
        if broker.fenced:
            return self._goodbye(broker, (), is_caught_up=is_caught_up)
        leads = broker.broker_id in self._image.leader_counts
        if not broker.in_controlled_shutdown:
            if not leads:
                return self._goodbye(broker, self.fence(broker), is_caught_up=is_caught_up)
            self._heartbeats.begin_shutdown(broker.broker_id, next_offset)
            change = BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
            )
            return _standing((change,), is_caught_up=is_caught_up, is_fenced=False)
        others = [other.broker_id for other in self._image.alive_brokers()]
        # A controller that has not seen the shutdown begin takes the last record of the log for the handover.
        moved_at = self._heartbeats.begin_shutdown(broker.broker_id, next_offset - 1)
        if others and self._heartbeats.lowest_offset(others) < moved_at:
            return _standing((), is_caught_up=is_caught_up, is_fenced=False)
        return self._goodbye(broker, self.fence(broker), is_caught_up=is_caught_up)

    def _goodbye(
        self, broker: BrokerImage, records: tuple[MetadataRecord, ...], *, is_caught_up: bool
    ) -> Decision[MetadataRecord, BrokerStanding]:
        self._heartbeats.end(broker.broker_id, broker.broker_epoch)
        return _standing(records, is_caught_up=is_caught_up, is_fenced=True, should_shut_down=True)

    def fence(self, broker: BrokerImage) -> tuple[MetadataRecord, ...]:
        """The record that fences the broker; nothing for a fenced broker."""
        if broker.fenced:
            return ()
        return (FenceBrokerRecord(id=broker.broker_id, epoch=broker.broker_epoch),)

    def unfence(self, broker: BrokerImage) -> tuple[MetadataRecord, ...]:
        """The record that lets the broker lead; nothing for a broker that may lead."""
        if not broker.fenced:
            return ()
        return (UnfenceBrokerRecord(id=broker.broker_id, epoch=broker.broker_epoch),)

    def fence_silent(self) -> Decision[MetadataRecord, CarriedOut]:
        """Fence one silent broker. A command fences one broker only: the changes by the next fence depend on the image
        after this fence."""
        for broker_id in self._heartbeats.silent(self._now_ms):
            self._heartbeats.forget(broker_id)
            broker = self._image.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                return Decision(records=self.fence(broker), response=CarriedOut())
        return Decision(records=(), response=CarriedOut())

    def unregister(self, command: UnregisterBroker) -> Decision[MetadataRecord, CarriedOut]:
        """Raises KafkaError BROKER_ID_NOT_REGISTERED; INVALID_REQUEST for a broker that is running.

        Kafka also unregisters a running broker, which then runs without a registration.
        """
        broker = self._image.brokers.get(command.broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {command.broker_id} is not registered")
        if not broker.fenced:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"broker {command.broker_id} is running: stop it first, then unregister it"
            )
        self._heartbeats.forget(command.broker_id)
        gone = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
        return Decision(records=(*departure_records(self._image, broker.broker_id), gone), response=CarriedOut())

    def register_controller(self, command: RegisterController) -> Decision[MetadataRecord, CarriedOut]:
        """Raises KafkaError UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED."""
        check_secret(f"controller {command.controller_id}", command.incarnation_id, command.secret)
        self._check_features(f"controller {command.controller_id}", command.features)
        before = self._image.controllers.get(command.controller_id)
        if before is not None and before.incarnation_id == command.incarnation_id:
            return Decision(records=(), response=CarriedOut())
        record = controller_registration(
            command.controller_id, command.incarnation_id, command.endpoints, command.features
        )
        return Decision(records=(record,), response=CarriedOut())

    def _check_features(self, process: str, features: tuple[SupportedFeature, ...]) -> None:
        supported = {feature.name: feature for feature in features}
        for name, level in self._image.features.items():
            feature = supported.get(name)
            if feature is None or not feature.min_version <= level <= feature.max_version:
                knows = "nothing of it" if feature is None else f"{feature.min_version} to {feature.max_version}"
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"the cluster runs {name} {level}, and {process} knows {knows};"
                    " start it with a release that knows it",
                )


def _standing(
    records: tuple[MetadataRecord, ...], *, is_caught_up: bool, is_fenced: bool, should_shut_down: bool = False
) -> Decision[MetadataRecord, BrokerStanding]:
    standing = BrokerStanding(is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=should_shut_down)
    return Decision(records=records, response=standing)


def _registration(command: RegisterBroker, broker_epoch: int, before: BrokerImage | None) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=command.broker_id,
        incarnation_id=command.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=recorded_endpoints(command.endpoints),
        features=recorded_features(command.features),
        rack=command.rack,
        fenced=True,
        log_dirs=tuple(sorted(command.log_directories)),
        is_unclean=before is not None and _has_lost_something(command, before),
    )


def _has_lost_something(command: RegisterBroker, before: BrokerImage) -> bool:
    """Whether the broker may have lost acknowledged records, by its own report or by its directories."""
    # Kafka keeps the epoch in the directory itself. Without that, a broker with an empty disk could claim the epoch.
    lacks_a_directory = not set(before.log_directories) <= set(command.log_directories)
    return before.broker_epoch != command.previous_broker_epoch or lacks_a_directory
