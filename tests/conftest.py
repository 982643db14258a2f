"""What all tests share."""

from __future__ import annotations

import os

# Before torch and MindSpore are loaded: a machine that runs the tests may have few cores, and forked workers follow.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny matrices: a second thread only makes torch and MindSpore wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
