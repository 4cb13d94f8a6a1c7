"""Incremental fetch sessions (KIP-227), pure: a fetch states its difference from the fetch before.

`requester` is the end of a consumer or a follower; `epochs` has the rules that `requester` shares with the broker's
end. A partition's key is its identity on the wire: the topic's id from Fetch v13 on, its name before.
"""
