"""Standard input as a sign of life: the process that started this one holds the other end of the pipe."""

from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError

CLUSTER_STOPS: Final = b"the cluster stops\n"
"""Said to each node of a cluster whose nodes are all about to be told to stop: none has to hand anything over."""


def has_no_end() -> KafkaError:
    """What is wrong with a file: the system tells of the end of pipes, sockets and terminals only."""
    return KafkaError(
        ErrorCode.INVALID_CONFIG,
        "--until-stdin-closes: standard input is a file or /dev/null, and nobody is told when that ends;"
        " give it a pipe, or leave the option out",
    )
