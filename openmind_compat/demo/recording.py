"""The Trainer of both demo scripts: it remembers the loss and the duration of every step."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from openmind_compat import Trainer


class RecordingTrainer(Trainer):
    """The log holds a rounded mean over `logging_steps`; comparing two engines wants each step's loss as it is."""

    step_losses: list[float]
    step_starts: list[float]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.step_losses, self.step_starts = [], []
        return super().train(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.step_starts.append(time.perf_counter())
        loss = super().training_step(*args, **kwargs)
        self.step_losses.append(loss.item())
        return loss

    @property
    def step_seconds(self) -> list[float]:
        """From the start of one step to the start of the next, so the optimizer's share counts too."""
        return [end - start for start, end in pairwise(self.step_starts)]
