"""Bytes to values and back: Kafka's wire protocol, without sockets and without waiting.

`messages` declares what can be said, `schema` encodes and decodes it, `registry` owns API keys and versions, `headers`
and `framing` are what stands around a message, `records` is what is stored.
"""
