"""Public functions: those of `import dygmamba`, and those that the commands of the command line call."""
