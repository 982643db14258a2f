"""What all tests share."""

from __future__ import annotations

import os

# Before torch and MindSpore are loaded. On models this small a second thread costs more than it brings, and on a
# machine that does other things much more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
