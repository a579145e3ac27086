from dygmamba.cli import main

main()
