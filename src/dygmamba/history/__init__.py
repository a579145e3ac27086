"""Look-ups into strictly earlier events (neighbor sequences, counts, temporal walks), and negative samplers."""
