from dygmamba.cli import command

command()
