"""What users call: the functions behind `import dygmamba`, and those behind the commands of the command line."""
