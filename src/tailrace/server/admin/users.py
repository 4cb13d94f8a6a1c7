"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): users and their passwords (KIP-554).

A description never has a salt or a key. Every node answers descriptions from its image; changes go to the controller.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.users import SCRAM_CREDENTIALS, SECRET_ENTRY
from tailrace.metadata.user_commands import (
    AlterScramCredentials,
    CredentialDeletion,
    CredentialUpsertion,
    ScramCredentialsAltered,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.scram import ScramMechanism
from tailrace.protocol.messages.security import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller

_LONGEST_SHOWN: Final = 1_000
"""The most characters of a name in the text of an error: a name may have as many characters as a string may have."""


class DescribeUserScramCredentialsHandler:
    """Names the mechanisms and iterations of users."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        image = self._controller.image
        if not request.users:
            stored = SCRAM_CREDENTIALS.of(image)
            names = dict.fromkeys(name for name, mechanism in stored if (name, mechanism) != SECRET_ENTRY)
            results = tuple(_described(image, name) for name in names)
        else:
            named = Counter(user.name for user in request.users)
            results = tuple(
                _refused_twice(name) if count > 1 else _described(image, name) for name, count in named.items()
            )
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(image: ClusterImage, name: str) -> DescribedScramUser:
    infos = tuple(_infos(image, name)) if name else ()
    if infos:
        return DescribedScramUser(user=name, error_message=None, credential_infos=infos)
    return _refused(
        name,
        ErrorCode.RESOURCE_NOT_FOUND,
        f"Attempt to describe a user credential that does not exist: {name[:_LONGEST_SHOWN]}",
    )


def _infos(image: ClusterImage, name: str) -> Iterator[ScramCredentialInfo]:
    stored = SCRAM_CREDENTIALS.of(image)
    for mechanism in ScramMechanism:
        credential = stored.get((name, mechanism))
        if credential is not None:
            yield ScramCredentialInfo(mechanism=mechanism, iterations=credential.iterations)


def _refused_twice(name: str) -> DescribedScramUser:
    text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name[:_LONGEST_SHOWN]}"
    return _refused(name, ErrorCode.DUPLICATE_RESOURCE, text)


def _refused(name: str, code: ErrorCode, text: str) -> DescribedScramUser:
    return DescribedScramUser(user=name, error_code=code, error_message=text, credential_infos=())


class AlterUserScramCredentialsHandler:
    """Sends changes of credentials to the controller."""

    def __init__(self, *, controller: Controller) -> None:
        self._controller = controller

    def handle(self, request: AlterUserScramCredentialsRequest, context: RequestContext) -> None:
        command = AlterScramCredentials(
            deletions=tuple(
                CredentialDeletion(user=deletion.name, mechanism=deletion.mechanism) for deletion in request.deletions
            ),
            upsertions=tuple(
                CredentialUpsertion(
                    user=upsertion.name,
                    mechanism=upsertion.mechanism,
                    iterations=upsertion.iterations,
                    salt=upsertion.salt,
                    salted_password=upsertion.salted_password,
                )
                for upsertion in request.upsertions
            ),
        )
        self._controller.submit(command, context.answering(request, _altered))


def _altered(outcome: Any) -> AlterUserScramCredentialsResponse:
    assert isinstance(outcome, ScramCredentialsAltered)
    return AlterUserScramCredentialsResponse(results=tuple(_result(user.user, user.error) for user in outcome.outcomes))


def _result(user: str, error: KafkaError | None) -> AlteredScramUser:
    if error is None:
        return AlteredScramUser(user=user, error_message=None)
    return AlteredScramUser(user=user, error_code=error.code, error_message=error.detail)
