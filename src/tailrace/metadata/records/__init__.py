"""The records of the metadata log `__cluster_metadata-0`, in Kafka's schemas, and the frame around a record.

A record's value is three unsigned varints (frame version, always 1; record type; version) and then the message in that
version. The key is null. Kafka's log dump and metadata shell read such records.

Our additions are tagged fields from 10000 on, which Kafka's tools skip. The row of each record in the table of record
kinds (`kinds`) stands beside the record's class.
"""

from tailrace.metadata.records import acls, brokers, cluster, quotas, topics, users

__all__ = ["acls", "brokers", "cluster", "quotas", "topics", "users"]
