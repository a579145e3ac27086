"""Training loop, executors, scoring and evaluation of any scorer on a stream, checkpoints and distributed training."""
