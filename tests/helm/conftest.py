"""Makes `support` importable, whatever the directory from which pytest runs."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
