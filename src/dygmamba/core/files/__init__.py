"""Durable file writing, folder locks, and careful reading of files from untrusted sources."""
