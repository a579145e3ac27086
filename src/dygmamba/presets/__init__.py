"""Tables of settings: published (paper), small, short, node classification, ablations, and search spaces for tuning."""
