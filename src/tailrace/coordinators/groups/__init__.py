"""Classic consumer groups (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) and the offsets that groups commit.

Two kinds of state, kept apart:
- records of `__consumer_offsets`: offsets and, per generation, the members with their assignments (`store`). This state
  is a function of the log; a restart replays it;
- state of the active coordinator alone: members that wait for a rebalance, and each member's session (`membership`).
  This state ends with the leadership; then clients join again.
"""
