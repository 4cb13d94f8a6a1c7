"""Members of a consumer group (KIP-848) and their coordinator."""
