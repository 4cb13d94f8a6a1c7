"""The differences in answers about users, rules and refused requests."""

from interop.differential.differences import MISSING, Difference

_CLOSED = {"answer": ("an answer", "the connection is closed")}
_BAD_REQUEST = "INVALID_REQUEST (42)"

ACCESS = (
    Difference(
        "CreateAcls",
        ("a wrong rule: an unknown type", "a wrong rule: an unknown operation", "a wrong rule: an unknown permission"),
        _CLOSED,
        "error 42 for the rule; Kafka closes the connection on a number for unknown",
    ),
    Difference(
        "CreateAcls",
        (
            "a wrong rule: any type",
            "a wrong rule: any pattern",
            "a wrong rule: a matching pattern",
            "a wrong rule: any operation",
            "a wrong rule: any permission",
        ),
        {"results.error_code": (_BAD_REQUEST, "UNKNOWN_SERVER_ERROR (-1)")},
        "a rule with a number of filters is a fault of the client, and not of the node",
    ),
    Difference(
        "DescribeAcls",
        (
            "rules are described: an unknown type",
            "rules are described: an unknown pattern",
            "rules are described: an unknown operation",
            "rules are described: an unknown permission",
        ),
        _CLOSED,
        "error 42; Kafka closes the connection on a number for unknown",
    ),
    Difference(
        "DescribeAcls",
        ("rules are described: numbers that do not exist",),
        {"error_code": (_BAD_REQUEST, "NONE (0)")},
        "error 42; Kafka finds no rule",
    ),
    Difference(
        "DeleteAcls",
        ("rules are deleted: an unknown type",),
        _CLOSED,
        "error 42 for the filter; Kafka closes the connection on a number for unknown",
    ),
    Difference(
        "Metadata",
        ("Bob without rights: metadata with operations",),
        {"topics.topic_authorized_operations": (0, -(2**31))},
        "a refused topic has no operations; Kafka leaves the number for not asked",
    ),
    Difference(
        "DescribeUserScramCredentials",
        ("Bob without rights: a user",),
        {"results": MISSING},
        "the error stands at the answer; Kafka repeats the error for each user",
    ),
)
