"""The command line: click commands, one file each, no logic; the entry point is `servebench.cli.main:main`."""
