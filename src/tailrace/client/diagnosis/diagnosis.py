"""A diagnosis of a client's way to a cluster: the steps of every client, one after the other.

    name -> addresses -> TCP -> ApiVersions -> Metadata -> the same for every address that the brokers advertise

The last step surprises people: a client uses the given address only to request the list of brokers, and
from then on the addresses that the brokers advertise. Every warning and failure names the setting to change.
"""

from collections.abc import Generator, Iterator

from tailrace.client.diagnosis.findings import (
    ADVICE_WHEN_NOT_SPOKEN,
    SPOKEN,
    Finding,
    Place,
    Verdict,
    failed,
    half_reached,
    is_loopback,
    is_wildcard,
    unreached,
    unresolved,
)
from tailrace.client.diagnosis.probe import Probe, ProbeFault, Target, Trouble, certificate_fault, identify, resolve
from tailrace.model.errors import ErrorCode
from tailrace.net.connection import Address
from tailrace.protocol.messages.api_versions import SaslHandshakeRequest, SaslHandshakeResponse
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker

_METADATA_VERSION = 9
"""New enough for a cluster id; old enough for every broker of the last years."""

_SECOND_LOOK_S = 2.0
"""The longest wait for an answer in another protocol, from a server that does not answer in the expected protocol."""


def diagnose(address: Address, *, timeout_s: float = 5.0, tls: bool = False) -> Iterator[Finding]:
    """The findings, each as soon as its step ends. The cluster is not changed."""
    return _Diagnosis(address, timeout_s, tls).run()


Reached = Generator[Finding, None, Target | None]
Spoken = Generator[Finding, None, MetadataResponse | None]


class _Diagnosis:
    """The steps of a diagnosis, and their findings."""

    def __init__(self, address: Address, timeout_s: float, tls: bool) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._tls = tls

    def run(self) -> Iterator[Finding]:
        given = Place(address=self._address)
        target = yield from self._reach(given)
        if target is None:
            return
        metadata = yield from self._speak(given, target)
        if metadata is None:
            return
        yield from _judge_cluster(self._address, metadata)
        for broker in sorted(metadata.brokers, key=lambda broker: broker.node_id):
            yield from self._try_broker(broker, metadata.cluster_id, is_only_one=len(metadata.brokers) == 1)

    def _reach(self, place: Place) -> Reached:
        """The first address of the host that takes connections."""
        address = place.address
        try:
            targets = resolve(address.host, address.port)
        except ProbeFault as fault:
            yield unresolved(place, fault)
            return None
        faults: list[tuple[Target, ProbeFault]] = []
        reached: Target | None = None
        for target in targets:
            try:
                with Probe(target, timeout_s=self._timeout_s):
                    reached = reached or target
            except ProbeFault as fault:
                faults.append((target, fault))
        if reached is None:
            yield unreached(place, faults)
            return None
        for missed, why in faults:
            yield half_reached(place, missed, why, reached)
        yield Finding(check="connect", target=str(address), verdict=Verdict.OK, detail=f"{reached} takes connections")
        return reached

    def _speak(self, place: Place, target: Target) -> Spoken:
        """The metadata of the cluster, from this server."""
        where = str(place.address)
        server_name = place.address.host if self._tls else None
        try:
            with Probe(target, timeout_s=self._timeout_s, server_name=server_name) as probe:
                versions = probe.ask_versions()
                how = "TLS" if self._tls else "plain text"
                detail = f"Kafka's protocol over {how}, {len(versions.api_keys)} APIs"
                yield Finding(check="protocol", target=where, verdict=Verdict.OK, detail=detail)
                if self._tls:
                    yield from self._judge_certificate(place, target)
                try:
                    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
                    metadata = probe.ask(request, MetadataResponse, max_version=_METADATA_VERSION)
                except ProbeFault as fault:
                    yield self._refused_metadata(place, target, fault)
                    return None
        except ProbeFault as fault:
            yield self._not_spoken(place, target, fault)
            return None
        return metadata

    def _judge_certificate(self, place: Place, target: Target) -> Iterator[Finding]:
        host = place.address.host
        fault = certificate_fault(target, server_name=host, timeout_s=self._timeout_s)
        if fault is not None:
            yield Finding(
                check="certificate",
                target=str(place.address),
                verdict=Verdict.WARNING,
                detail=fault,
                advice="give clients the authority that signed it (ssl.ca.location, ssl.truststore.location);"
                f" the certificate must name {host}",
            )

    def _not_spoken(self, place: Place, target: Target, fault: ProbeFault) -> Finding:
        trouble = fault.trouble
        if trouble in (Trouble.CLOSED, Trouble.SILENT, Trouble.NOT_KAFKA) and not self._tls:
            trouble = identify(target, timeout_s=min(self._timeout_s, _SECOND_LOOK_S)) or trouble
        elif self._tls and self._speaks_plain(target):
            trouble = Trouble.PLAIN
        detail = fault.detail if trouble is fault.trouble else f"{fault.detail}; {SPOKEN[trouble]}"
        return failed("protocol", place, detail, ADVICE_WHEN_NOT_SPOKEN[trouble])

    def _speaks_plain(self, target: Target) -> bool:
        try:
            with Probe(target, timeout_s=min(self._timeout_s, _SECOND_LOOK_S)) as probe:
                probe.ask_versions()
        except ProbeFault:
            return False
        return True

    def _refused_metadata(self, place: Place, target: Target, fault: ProbeFault) -> Finding:
        mechanisms = self._sasl_mechanisms(place, target)
        if mechanisms is None:
            return failed(
                "metadata",
                place,
                fault.detail,
                "the server speaks Kafka's protocol but names no brokers: look into its log",
            )
        offered = ", ".join(mechanisms) or "none"
        protocol = "SASL_SSL" if self._tls else "SASL_PLAINTEXT"
        return failed(
            "authentication",
            place,
            f"clients must log in (SASL: {offered})",
            f"set security.protocol={protocol}, sasl.mechanism={mechanisms[0] if mechanisms else '...'}, and the"
            " name and password of the client; or use a listener without SASL",
        )

    def _sasl_mechanisms(self, place: Place, target: Target) -> tuple[str, ...] | None:
        """The SASL mechanisms; None without authentication."""
        server_name = place.address.host if self._tls else None
        try:
            with Probe(target, timeout_s=self._timeout_s, server_name=server_name) as probe:
                probe.ask_versions()
                answer = probe.ask(SaslHandshakeRequest(mechanism="?"), SaslHandshakeResponse, max_version=1)
        except ProbeFault:
            return None
        return tuple(answer.mechanisms) if answer.error_code != ErrorCode.ILLEGAL_SASL_STATE else None

    def _try_broker(
        self, broker: MetadataResponseBroker, cluster_id: str | None, *, is_only_one: bool
    ) -> Iterator[Finding]:
        address = Address(broker.host, broker.port)
        place = Place(
            address=address,
            broker=broker.node_id,
            given_host=self._address.host,
            given_port=self._address.port if is_only_one else None,
        )
        if is_wildcard(broker.host) or not 0 < broker.port < 65536:
            yield failed(
                "advertised",
                place,
                f"broker {broker.node_id} advertises {address}, which is no address to connect to",
                f"set {place.suggestion}",
            )
            return
        target = yield from self._reach(place)
        if target is None:
            return
        metadata = yield from self._speak(place, target)
        if metadata is None:
            return
        if cluster_id and metadata.cluster_id and metadata.cluster_id != cluster_id:
            yield failed(
                "advertised",
                place,
                f"broker {broker.node_id} advertises {address}, where another cluster answers ({metadata.cluster_id})",
                f"{place.setting} leads elsewhere as seen from this machine: set {place.suggestion}",
            )
        elif is_loopback(broker.host) and not is_loopback(self._address.host):
            yield Finding(
                check="advertised",
                target=str(address),
                verdict=Verdict.WARNING,
                detail=f"broker {broker.node_id} advertises {address}, which works on its own machine only",
                advice=f"for clients on other machines set {place.suggestion}",
            )
        else:
            detail = f"broker {broker.node_id} is where it says"
            yield Finding(check="advertised", target=str(address), verdict=Verdict.OK, detail=detail)


def _judge_cluster(address: Address, metadata: MetadataResponse) -> Iterator[Finding]:
    brokers = len(metadata.brokers)
    if brokers:
        detail = f"cluster {metadata.cluster_id or 'without id'}, {brokers} broker{'s' if brokers > 1 else ''}"
        yield Finding(check="metadata", target=str(address), verdict=Verdict.OK, detail=detail)
    else:
        yield failed(
            "metadata",
            Place(address=address),
            "the cluster names no broker",
            "the brokers are fenced or still starting, or this is a controller's listener: look into the broker's log",
        )
