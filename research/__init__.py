"""Pages and tables of docs/research out of stored results, run from a checkout: `make results`."""
