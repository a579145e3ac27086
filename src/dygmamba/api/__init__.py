"""What `import dygmamba` offers, and what the command line calls: one way to do each thing, in Python's words."""
