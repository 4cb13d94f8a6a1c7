"""The clients, for Tailrace and for Apache Kafka: `client.blocking` for everybody, `client.{admin,producer,consumer,
ranged_fetch}` for asyncio. Nothing here imports the server."""
