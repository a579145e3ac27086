"""Event streams in memory: the events, node ids, splits, statistics, and checks for suspicious data."""
