"""Learning tasks (link prediction, node classification, node properties): queries, losses, metrics, calibration."""
