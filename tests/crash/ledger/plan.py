"""The plan of one program of the ledger: what it reads and writes, as one JSON object in its arguments."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Self

from testkit.verdicts.ledger import ACCOUNTS, COPIES, Place

PARTITIONS: Final = {ACCOUNTS: 4, COPIES: 2}
END: Final = "end"
"""The value of the last record of each partition: it belongs to no transaction."""
WORK: Final = "work"
READ: Final = "read"
OF_ONE_COPY: Final = 6
"""The most records that one transaction copies."""
ABORT_EVERY: Final = 7
"""Transactions whose number this divides are aborted on purpose."""
SIGHT: Final = 6
"""The most records of a partition that a transfer names."""


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """The arguments of a program in any language."""

    role: str
    """WORK or READ."""
    client: str
    life: int
    servers: str
    output: str
    """The file for the diary, or for the records that it reads: JSON lines, appended."""
    partitions: Mapping[str, int]
    source: str
    """The topic of one partition that the client copies."""
    group: str
    transactional_id: str
    transaction_timeout_ms: int
    pause_ms: int
    """Between two transactions."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises TypeError if a field is missing."""
        return cls(**json.loads(text))

    @property
    def places(self) -> list[Place]:
        """The partitions of the ledger."""
        return [Place(topic, number) for topic, count in self.partitions.items() for number in range(count)]


def accounts_of(number: int, count: int) -> tuple[int, int]:
    """The two accounts of the transfer with this number: all pairs come in turn."""
    payer = number % count
    return payer, (payer + 1 + number // count % (count - 1)) % count
