"""FindCoordinator (10): which broker keeps a group or a transaction."""

from tailrace.protocol.schema import Int8, Int16, Int32, field, message, struct


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Asks for the coordinator of a group (type 0), transaction (1) or share group (2). v4 has many keys (KIP-699)."""

    key: str = field(versions="0-3", default="")
    key_type: Int8 = field(versions="1+", default=0)
    coordinator_keys: tuple[str, ...] = field(versions="4+", default=())


@struct
class Coordinator:
    """The coordinator of one key, or why there is none."""

    key: str = field(versions="4+", default="")
    node_id: Int32 = field(versions="4+", default=0)
    host: str = field(versions="4+", default="")
    port: Int32 = field(versions="4+", default=0)
    error_code: Int16 = field(versions="4+", default=0)
    error_message: str | None = field(versions="4+", default="")


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators' addresses: until v3 in the message itself, from v4 one entry per key."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = field(versions="0-3", default=0)
    error_message: str | None = field(versions="1-3", default="")
    node_id: Int32 = field(versions="0-3", default=0)
    host: str = field(versions="0-3", default="")
    port: Int32 = field(versions="0-3", default=0)
    coordinators: tuple[Coordinator, ...] = field(versions="4+", default=())
