"""Both ends of a fetch session (KIP-227), in every order and in long walks."""
