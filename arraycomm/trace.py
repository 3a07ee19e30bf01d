"""`python -m arraycomm.trace FOLDER`, which is the command arraycomm-trace: merges the traces of a run's ranks."""

import sys

from .monitor.trace import main

if __name__ == "__main__":
    sys.exit(main())
