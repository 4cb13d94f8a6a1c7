"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): access control lists (KIP-140).

v2 is flexible; v3 has resources of kind User. The numbers of kinds, patterns and operations are Kafka's.
"""

from tailrace.protocol.schema import Int8, Int16, Int32, message, struct

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
    """A principal, and the operation that it may or may not carry out."""

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
