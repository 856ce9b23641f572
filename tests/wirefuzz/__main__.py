"""Entry point of `python3 -m wirefuzz`, which `tests/wire-fuzz` calls."""

import sys

from .command import main

sys.exit(main())
