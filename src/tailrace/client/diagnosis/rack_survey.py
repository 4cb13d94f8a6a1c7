"""The survey of a cluster for a diagnosis of racks: its brokers' racks, selectors and versions, and its topics.

Works with Apache Kafka too, and changes nothing. A broker that cannot be asked is in the survey, with its fault.
"""

from collections.abc import Iterable

from tailrace.client.admin.cluster import BrokerListing
from tailrace.client.admin.configs import BROKER
from tailrace.client.blocking.admin import Admin
from tailrace.client.diagnosis.probe import Probe, ProbeFault, resolve
from tailrace.client.diagnosis.racks import SELECTOR, RackBroker, RackSurvey
from tailrace.model.errors import KafkaError
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.registry import api_of

_FETCH = api_of(FetchRequest).key


def survey_racks(admin: Admin, topics: Iterable[str] | None = None, *, timeout_s: float = 5.0) -> RackSurvey:
    """The survey with these topics, or every topic that is not internal. Raises KafkaError, also for a topic that does
    not exist.

    `timeout_s` is the longest wait for one step of the connection to one broker.
    """
    described = admin.describe_topics(None if topics is None else dict.fromkeys(topics))
    brokers = (_broker(admin, broker, timeout_s) for broker in admin.list_brokers())
    return RackSurvey(brokers={broker.node_id: broker for broker in brokers}, topics=described)


def _broker(admin: Admin, broker: BrokerListing, timeout_s: float) -> RackBroker:
    node_id = int(broker.node_id)
    if broker.is_fenced:
        return RackBroker(node_id=node_id, rack=broker.rack, is_fenced=True, fault="it is fenced")
    try:
        version = _newest_fetch(broker, timeout_s)
    except ProbeFault as fault:
        return RackBroker(node_id=node_id, rack=broker.rack, fault=fault.detail)
    try:
        settings = {entry.name: entry.value for entry in admin.describe_configs(BROKER, str(node_id))}
    except KafkaError as fault:
        return RackBroker(node_id=node_id, rack=broker.rack, fetch_version=version, fault=fault.detail)
    return RackBroker(node_id=node_id, rack=broker.rack, fetch_version=version, selector=settings.get(SELECTOR))


def _newest_fetch(broker: BrokerListing, timeout_s: float) -> int | None:
    """The newest Fetch that the broker announces. Raises ProbeFault if the broker cannot be reached."""
    (target, *_) = resolve(broker.host, broker.port)
    with Probe(target, timeout_s=timeout_s) as probe:
        versions = probe.ask_versions()
    return next((api.max_version for api in versions.api_keys if api.api_key == _FETCH), None)
