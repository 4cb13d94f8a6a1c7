"""Foreign programs, as their package managers bring them."""
