"""What all tests share."""

from __future__ import annotations

import os

# Before torch and MindSpore are loaded: a machine that runs the tests may have few cores, and forked workers follow.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
