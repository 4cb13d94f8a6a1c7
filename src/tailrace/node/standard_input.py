"""Standard input as a sign of life: whoever started this process holds the other end of the pipe."""

from tailrace.model.errors import ErrorCode, KafkaError


def has_no_end() -> KafkaError:
    """What is wrong with a file: the system tells of the end of pipes, sockets and terminals only."""
    return KafkaError(
        ErrorCode.INVALID_CONFIG,
        "--until-stdin-closes: standard input is a file or /dev/null, and nobody is told when that ends;"
        " give it a pipe, or leave the option out",
    )
