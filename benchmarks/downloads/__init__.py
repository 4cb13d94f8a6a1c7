"""Programs of other projects, fetched with their package managers."""
