"""Bytes to values and back: Kafka's wire protocol, without sockets and without waiting.

`messages` declares what can be said, `schema` encodes and decodes messages, `registry` owns API keys and versions,
`headers` puts headers and frames around a message, `records` is the stored form.
"""
