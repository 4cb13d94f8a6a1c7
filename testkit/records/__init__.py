"""Records, batches, frames and messages, as a builder makes them and as no builder does."""
