"""The audit of one node: its trail of events, and the log behind the trail."""

from pathlib import Path
from typing import Final

from tailrace.model.identity import ClientIdentity
from tailrace.net.tls_acceptor import MECHANISM
from tailrace.node.audit.files import AuditLimits
from tailrace.node.audit.log import AuditLog
from tailrace.node.event_loop import LoopClock
from tailrace.node.settings.config import NodeConfig
from tailrace.server.audit import AUTHENTICATION, NO_AUDIT, Audit, AuditTrail, DeniedAccesses, shortened


class NodeAudit:
    """`start`, then events, then `stop`."""

    def __init__(self, config: NodeConfig, *, clock: LoopClock) -> None:
        directory = _directory(config)
        self.log: Final = None if directory is None else AuditLog(directory, _limits(config), node_id=config.node_id)
        """None: the node has no audit log."""
        self._trail = None if self.log is None else AuditTrail(self.log.put, clock=clock)
        self.audit: Final[Audit] = self._trail or NO_AUDIT
        self.denied: Final = DeniedAccesses(self.audit)
        """The denied accesses of all requests to the node."""

    @property
    def left_out(self) -> int:
        """The number of events without a line: their clients had too many."""
        return 0 if self._trail is None else self._trail.left_out

    def start(self) -> None:
        """Open the log. Raises OSError: a node that should have an audit log does not start without."""
        if self.log is not None:
            self.log.start()

    def stop(self) -> None:
        """Write what waits, and close the log."""
        if self.log is not None:
            self.log.stop()

    def record_handshake(self, client: ClientIdentity, fault: str) -> None:
        """Record a client by its certificate, or a TLS handshake that has failed."""
        fields = {"outcome": "failed" if fault else "succeeded", "mechanism": MECHANISM, "reason": shortened(fault)}
        self.audit.record(AUTHENTICATION, client, lambda: fields)


def _directory(config: NodeConfig) -> Path | None:
    """The directory of the audit log; None if there is none."""
    if not config.flag("audit.log.enable"):
        return None
    given = config.text("audit.log.dir")
    return Path(given) if given else config.data_directory.with_name(f"{config.data_directory.name}-audit")


def _limits(config: NodeConfig) -> AuditLimits:
    """The sizes of the files."""
    return AuditLimits(
        segment_bytes=config.integer("audit.log.segment.bytes"),
        retention_bytes=config.integer("audit.log.retention.bytes"),
    )
