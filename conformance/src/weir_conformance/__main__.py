"""`python -m weir_conformance`."""

from weir_conformance.cli import main

raise SystemExit(main())
