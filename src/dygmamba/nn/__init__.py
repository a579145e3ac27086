"""Layers shared by the models: attention, encodings, memories, mixers, state space blocks and tokens."""
