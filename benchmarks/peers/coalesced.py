"""A node that sends high watermarks to its followers at another pace than the product.

`python -m benchmarks.peers.coalesced MS serve ...` runs `tailrace serve ...` with MS in place of
`sessions.IDLE_ANSWER_MS`, the least time between two answers that have nothing but a high watermark.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tailrace.__main__ import main
from tailrace.node.local.cluster import LocalNode
from tailrace.server.fetch import sessions
from tailrace.testing import node_process

AT_ONCE_MS = 0
NEVER_MS = 10**9
"""No answer has only a high watermark, except the first one of a session."""


@contextmanager
def coalesced(interval_ms: int) -> Iterator[None]:
    """Start the nodes of clusters within the block with this interval."""
    product = node_process.serve_command

    def command(node: LocalNode) -> list[str]:
        python, _, _, *options = product(node)
        return [python, "-m", "benchmarks.peers.coalesced", str(interval_ms), *options]

    with patch.object(node_process, "serve_command", command):
        yield


if __name__ == "__main__":
    interval_ms = int(sys.argv.pop(1))
    with patch.object(sessions, "IDLE_ANSWER_MS", interval_ms):
        main()
