"""Lines of three nodes in three racks."""
