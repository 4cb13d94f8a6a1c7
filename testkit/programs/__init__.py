"""The programs and files around a node: its commands, their findings, a registry of schemas."""
