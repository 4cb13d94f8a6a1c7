"""Watches the ends of the certificates of this node's listeners: a log line and a metric, days before and afterwards.

A certificate that has expired ends no connection; new clients refuse it. A file with a new certificate is read within a
second (`net.tls.TlsContexts`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from datetime import datetime

LOOK_SECONDS: Final = 3_600.0
"""The time between two looks at the ends; a log line comes with each look that finds a certificate near its end."""
_DAY_SECONDS: Final = 86_400

_logger = logging.getLogger("tailrace.node")


class HasEnd(Protocol):
    """The certificate of a listener: `net.tls.TlsContexts`."""

    @property
    def ends(self) -> "datetime | None":
        """The end of the certificate's validity, if it is known."""
        ...


class CertificateWatch:
    """Looks at the ends of certificates by the name of the listener; `look` is called again and again."""

    def __init__(
        self,
        certificates: Mapping[str, HasEnd],
        *,
        warning_days: int,
        now: "Callable[[], datetime] | None" = None,
    ) -> None:
        self._certificates = certificates
        self._warning_days = warning_days
        self._now = now or _utc_now

    def seconds_left(self) -> Iterable[tuple[str, float]]:
        """The time to the end by listener, in seconds; below 0 for an expired certificate."""
        if not self._certificates:
            return
        now = self._now()
        for listener, certificate in self._certificates.items():
            if (end := certificate.ends) is not None:
                yield listener, (end - now).total_seconds()

    def look(self) -> None:
        """Log each certificate that has expired, or that expires within the days of the warning."""
        for listener, seconds in self.seconds_left():
            end = self._certificates[listener].ends
            if seconds <= 0:
                _logger.error(
                    "event=certificate-expired listener=%s since=%s effect='clients refuse new connections; open"
                    " connections go on' way-out='write a new certificate into ssl.keystore.location'",
                    listener,
                    end,
                )
            elif seconds < self._warning_days * _DAY_SECONDS:
                days = int(seconds // _DAY_SECONDS)
                _logger.warning("event=certificate-expires listener=%s days=%d at=%s", listener, days, end)


def _utc_now() -> "datetime":
    from datetime import UTC, datetime  # half a megabyte, which a node without certificates does not need

    return datetime.now(UTC)
