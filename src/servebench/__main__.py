"""`python -m servebench` is the `servebench` command."""

import sys

from servebench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
