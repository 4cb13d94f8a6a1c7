"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): users with passwords (KIP-554)."""

from tailrace.protocol.schema import Int8, Int16, Int32, message, struct


@struct
class ScramUserName:
    name: str


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """Asks which credentials users have; null and no names mean all users."""

    users: tuple[ScramUserName, ...] | None


@struct
class ScramCredentialInfo:
    """A credential without its secret parts."""

    mechanism: Int8
    iterations: Int32


@struct
class DescribedScramUser:
    """A user, or the error that stands in its place."""

    user: str
    error_code: Int16 = 0
    error_message: str | None
    credential_infos: tuple[ScramCredentialInfo, ...]


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """The users."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    results: tuple[DescribedScramUser, ...]


@struct
class ScramCredentialDeletion:
    """A user, and the mechanism whose credential is to go."""

    name: str
    mechanism: Int8


@struct
class ScramCredentialUpsertion:
    """A user, and the credential that it is to have for a mechanism."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Changes credentials."""

    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


@struct
class AlteredScramUser:
    """Whether the credentials of a user were changed."""

    user: str
    error_code: Int16 = 0
    error_message: str | None


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """The outcome of each user."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlteredScramUser, ...]
