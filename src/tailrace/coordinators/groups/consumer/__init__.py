"""Consumer groups of KIP-848: the coordinator assigns, and each member is led to its assignment by heartbeats.

A replicated machine through and through: epochs, subscriptions, targets and what each member holds are records in
`__consumer_offsets`, in Kafka's formats. Only the sessions are the coordinator's own.
"""
