"""`python -m openmind_compat.demo`."""

import sys

from openmind_compat.demo import main

sys.exit(main())
