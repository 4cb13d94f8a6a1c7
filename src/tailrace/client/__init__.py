"""The clients, for Tailrace and for Apache Kafka; users import them from `tailrace` and `tailrace.aio`.

Blocking: `blocking`. For asyncio: `admin`, `consumer`, `producer`, `ranged_fetch`. Nothing here imports the server.
"""
