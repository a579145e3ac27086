"""Tables of settings: published (paper), small, node classification, ablations, and search spaces for tuning."""
