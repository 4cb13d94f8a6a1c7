"""The list of differences: three brokers, reads of consumers and of followers."""

from interop.differential.differences import ANY, ONLY_HERE, Difference, Values

_OK = "NONE (0)"
_NOT_LEADER = "NOT_LEADER_OR_FOLLOWER (6)"
_NO_RANGE: Values = (ANY, -1)
_PART = "responses.partitions"
_RANGE_NAMES = ("high_watermark", "last_stable_offset", "log_start_offset")
_FORGED = (
    "any client of the port could acknowledge for a replica: a fetch in its name has a leader epoch, "
    "and the broker epoch of its registration"
)
_LEADER = (f"{_PART}.current_leader.leader_id", f"{_PART}.current_leader.leader_epoch")

REPLICATED = (
    Difference(
        "Fetch",
        (
            "a read from *",
            "a read out of range in epoch 0, at *",
            "a session with a follower in v*: beyond the end",
        ),
        {f"{_PART}.{name}": _NO_RANGE for name in _RANGE_NAMES},
        "an answer to an offset out of range has the range (KIP-392)",
        beside_error=True,
    ),
    Difference(
        "Fetch",
        ("a read of a partition too many, at *",),
        {f"{_PART}.aborted_transactions": (None, {})},
        "null, as in every other answer without read_committed",
    ),
    Difference(
        "Fetch",
        ("a committed read by rack *, at 1",),
        {f"{_PART}.aborted_transactions": ({}, None)},
        "empty, as in every other answer with read_committed",
    ),
    Difference(
        "Fetch",
        (
            "a fetch of follower 2, at 1",
            "a fetch of follower 2 in epoch 0, at 1",
            "a fetch of follower 2 of broker epoch *, at 1",
            "a session of a follower in v*: is made",
        ),
        {
            f"{_PART}.error_code": (_NOT_LEADER, _OK),
            **{f"{_PART}.{name}": (-1, ANY) for name in _RANGE_NAMES},
        },
        _FORGED,
    ),
    Difference(
        "Fetch",
        ("a fetch of follower 2 beyond the end, at 1",),
        {f"{_PART}.error_code": (_NOT_LEADER, "OFFSET_OUT_OF_RANGE (1)")},
        _FORGED,
    ),
    Difference(
        "Fetch",
        (
            "a session of a follower in v*: nothing is new",
            "a session of a follower in v*: what another broker leads",
            "a session of a follower in v*: that again",
        ),
        {"responses": ONLY_HERE, _PART: ONLY_HERE},
        f"{_FORGED}; an error comes with every answer",
    ),
    Difference(
        "Fetch",
        ("a fetch of follower *, at 1",),
        dict.fromkeys(_LEADER, (-1, ANY)),
        "the node that refuses the fetch is the leader; Kafka names itself",
    ),
    Difference(
        "Fetch",
        (
            "a fetch of follower *, at 2",
            "a fetch of follower *, at 3",
            "a session of a follower in v*: what another broker leads",
            "a session of a follower in v*: that again",
        ),
        {**dict.fromkeys(_LEADER, (ANY, -1)), "node_endpoints": ONLY_HERE},
        "every version with a field for the leader names it, to followers too; Kafka names it from version 16 on",
    ),
)
