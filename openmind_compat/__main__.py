"""`python -m openmind_compat`."""

import sys

from openmind_compat.cli import main

sys.exit(main())
