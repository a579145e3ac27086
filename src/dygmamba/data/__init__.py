"""Event data: streams, storage, readers, the catalogue of public datasets, and synthetic streams."""
