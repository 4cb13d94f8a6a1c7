"""The golden files of tests/, which other programs wrote or read: seeds that are not of our own making."""

from collections.abc import Iterator
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "tests" / "golden"
LOG_DIRECTORY = DIRECTORY / "log_directory"


def record_batches() -> Iterator[bytes]:
    """Batches that foreign clients wrote, in every codec."""
    for path in sorted((DIRECTORY / "record_batches").glob("*.bin")):
        yield path.read_bytes()


def segments() -> Iterator[bytes]:
    """Whole .log files: of users, of groups, of the metadata."""
    for path in sorted(LOG_DIRECTORY.glob("*/*.log")):
        yield path.read_bytes()


def hex_lines(name: str) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of a file of `name, hex` lines."""
    for line in (DIRECTORY / name).read_text().splitlines():
        words = line.split()
        if len(words) == 2 and not line.startswith("#"):
            yield words[0], bytes.fromhex(words[1])


def client_frames(api_name: str) -> Iterator[bytes]:
    """Requests of one API that foreign clients sent, without a length prefix."""
    for name, frame in hex_lines("client_frames.txt"):
        if name.split("-")[-2] == api_name:
            yield frame


def files_named(*suffixes: str) -> Iterator[bytes]:
    """The files of the golden log directory with these endings."""
    for path in sorted(LOG_DIRECTORY.rglob("*")):
        if path.name.endswith(suffixes):
            yield path.read_bytes()
