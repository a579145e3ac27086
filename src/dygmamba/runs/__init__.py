"""Runs: training, opening, evaluating, predicting, calibrating, exporting, blending and sharing of run directories."""
