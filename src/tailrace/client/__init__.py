"""The clients, for Tailrace and for Apache Kafka: blocking in `blocking`, for asyncio in `admin`, `consumer`,
`producer` and `ranged_fetch`. Users import them from `tailrace` and `tailrace.aio`. Nothing here imports the server."""
