"""A survey of Spark's executors: can each reach the brokers, and with which versions."""
