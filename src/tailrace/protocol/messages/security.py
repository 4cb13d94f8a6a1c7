"""Users, their passwords, their tokens and their rights.

DescribeAcls (29), CreateAcls (30), DeleteAcls (31): access control lists (KIP-140). v2 is flexible; v3 has resources of
kind User. The numbers of kinds, patterns and operations are Kafka's.

DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): users with passwords (KIP-554).

CreateDelegationToken (38), RenewDelegationToken (39), ExpireDelegationToken (40) and DescribeDelegationToken (41): an
owner passes a token on in place of its password (KIP-48). v2 is flexible; v3 of creation and description has a
requester beside the owner (KIP-373).
"""

from tailrace.protocol.schema import Int8, Int16, Int32, Int64, field, message, struct

# Access control lists

_LITERAL = 3


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """Asks for the bindings that match a filter; null matches every name."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = _LITERAL
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


@struct
class AclDescription:
    """A principal, and the operation that the principal may or may not carry out."""

    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@struct
class DescribeAclsResource:
    """A pattern of resources with its bindings."""

    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = _LITERAL
    acls: tuple[AclDescription, ...]


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The bindings, by resource."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None
    resources: tuple[DescribeAclsResource, ...]


@struct
class AclCreation:
    """A binding to add."""

    resource_type: Int8
    resource_name: str
    resource_pattern_type: Int8 = _LITERAL
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    """Adds bindings."""

    creations: tuple[AclCreation, ...]


@struct
class AclCreationResult:
    """Whether a binding was added; in the order of the request."""

    error_code: Int16 = 0
    error_message: str | None


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """The outcome of each binding."""

    throttle_time_ms: Int32 = 0
    results: tuple[AclCreationResult, ...]


@struct
class DeleteAclsFilter:
    """The bindings to remove; null matches every name."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = _LITERAL
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """Removes the bindings that match any of the filters."""

    filters: tuple[DeleteAclsFilter, ...]


@struct
class DeleteAclsMatchingAcl:
    """A binding that was removed, or could not be."""

    error_code: Int16 = 0
    error_message: str | None
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = _LITERAL
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@struct
class DeleteAclsFilterResult:
    """The removed bindings of one filter; in the order of the request."""

    error_code: Int16 = 0
    error_message: str | None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """The outcome of each filter."""

    throttle_time_ms: Int32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...]


# Users with passwords


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
    """A user, and the mechanism whose credential is to be deleted."""

    name: str
    mechanism: Int8


@struct
class ScramCredentialUpsertion:
    """A user, and the user's new credential for a mechanism."""

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


# Delegation tokens


@struct
class TokenPrincipal:
    """A user: the owner of a token, or a user that may renew the token."""

    principal_type: str
    principal_name: str


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Asks for a token; without an owner the requester owns the token."""

    owner_principal_type: str | None = field(versions="3+", default=None)
    owner_principal_name: str | None = field(versions="3+", default=None)
    renewers: tuple[TokenPrincipal, ...]
    max_lifetime_ms: Int64


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token."""

    error_code: Int16 = 0
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(versions="3+", default="")
    token_requester_principal_name: str = field(versions="3+", default="")
    issue_timestamp_ms: Int64 = -1
    expiry_timestamp_ms: Int64 = -1
    max_timestamp_ms: Int64 = -1
    token_id: str
    hmac: bytes
    throttle_time_ms: Int32 = 0


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Asks that a token expires later."""

    hmac: bytes
    renew_period_ms: Int64


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """The time at which the token expires now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Asks that a token expires sooner."""

    hmac: bytes
    expiry_time_period_ms: Int64


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """The time at which the token expires now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Asks for the tokens of some owners, or of every owner."""

    owners: tuple[TokenPrincipal, ...] | None


@struct
class DescribedDelegationToken:
    """A token of its owner."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(versions="3+", default="")
    token_requester_principal_name: str = field(versions="3+", default="")
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    renewers: tuple[TokenPrincipal, ...]


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens."""

    error_code: Int16 = 0
    tokens: tuple[DescribedDelegationToken, ...]
    throttle_time_ms: Int32 = 0
