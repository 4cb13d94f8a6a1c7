"""The diaries of the ledger's programs: the transactions and the errors of each life of a client."""

from collections.abc import Iterator, Mapping
from typing import Any

from testkit.verdicts.client_errors import ClientError
from testkit.verdicts.ledger import COMMITTED, UNKNOWN, Attempt


class DiaryReader:
    """The diary of one life of a client, line by line."""

    def __init__(self, client: str, life: int) -> None:
        self._client = client
        self._life = life
        self._began_ns = 0
        """The begin of the last transaction, or of the first of several failed transactions in a row; before any
        transaction the time of the first line."""
        self._has_failed = False
        self._facts: dict[str, dict[str, Any]] = {}
        self.errors: list[ClientError] = []

    def take(self, line: Mapping[str, Any]) -> None:
        at_ns = line["at"]
        match line["op"]:
            case "began":
                if not self._has_failed:
                    self._began_ns = at_ns
                self._facts[line["name"]] = {"number": line["number"], "began_ns": at_ns}
            case "commits":
                self._facts[line["name"]]["commit_ns"] = at_ns
            case "ended":
                self._facts[line["name"]]["outcome"] = line["outcome"]
                self._has_failed &= line["outcome"] != COMMITTED
            case "error":
                self._add(at_ns, line["why"], is_fatal=line["fatal"])
                self._has_failed = True
            case "alive":
                self._began_ns = at_ns

    def end(self, at_ns: int, printed: str) -> None:
        """Note that the process ended at this time, not by a fault, and perhaps without a note of its error."""
        if not any(error.is_fatal for error in self.errors):
            self._add(at_ns, printed, is_fatal=True)

    def _add(self, at_ns: int, reason: str, *, is_fatal: bool) -> None:
        began_ns = self._began_ns or at_ns
        self.errors.append(ClientError(self._client, is_fatal, began_ns, at_ns, reason))

    def attempts(self) -> Iterator[Attempt]:
        for name, facts in self._facts.items():
            yield Attempt(
                name=name,
                client=self._client,
                life=self._life,
                number=facts["number"],
                began_ns=facts["began_ns"],
                commit_ns=facts.get("commit_ns"),
                outcome=facts.get("outcome", UNKNOWN),
            )
