"""Consumer groups of KIP-848: the coordinator assigns, and leads each member to its assignment by heartbeats.

Epochs, subscriptions, target and current assignments are records of `__consumer_offsets`, in Kafka's formats. Only the
sessions are in the memory of the coordinator alone.
"""
