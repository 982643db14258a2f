"""The documented training step on MindSpore, on any device, without mindformers. Importing this loads mindspore."""

from openmind_compat.runtime import load_mindspore

load_mindspore()  # first, so that MindSpore starts quietly

from openmind_compat.wrapper.phases import (  # noqa: E402
    ClipPhase,
    ForwardBackwardPhase,
    OverflowPhase,
    UpdatePhase,
)
from openmind_compat.wrapper.train_one_step import MFTrainOneStepCell  # noqa: E402

__all__ = ["ClipPhase", "ForwardBackwardPhase", "MFTrainOneStepCell", "OverflowPhase", "UpdatePhase"]
