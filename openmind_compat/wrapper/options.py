"""Reading the step's arguments: what they may be, and the errors when they are not."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore import dtype as mstype


def read_scale_sense(scale_sense: Any) -> Tensor | nn.Cell:
    """The loss scale as a float32 Tensor of shape () or (1,), or the Cell that updates it.

    Raises:
        TypeError: it is neither a number, nor a Tensor, nor a Cell. A bool is no number.
        ValueError: a Tensor's shape is neither () nor (1,), or the value is not a positive finite number, with which
            no step could be taken.
    """
    if isinstance(scale_sense, nn.Cell):
        return scale_sense
    if isinstance(scale_sense, Tensor):
        if scale_sense.shape not in ((), (1,)):
            raise ValueError(f"scale_sense: its shape must be () or (1,), not {scale_sense.shape}")
        value = scale_sense.asnumpy().astype(np.float32)
    elif isinstance(scale_sense, numbers.Real) and not isinstance(scale_sense, bool):
        value = np.asarray(scale_sense, np.float32)
    else:
        raise TypeError(f"scale_sense must be an int, a float, a Tensor or a Cell, not {type(scale_sense).__name__}")
    if not (np.isfinite(value).all() and (value > 0).all()):
        raise ValueError(f"scale_sense must be positive and finite, not {scale_sense}")
    return Tensor(value, mstype.float32)


@dataclasses.dataclass
class StepOptions:
    """The keyword arguments beside the documented ones. The names that MindFormers has are MindFormers' own."""

    gradient_accumulation_steps: int = 1
    use_ema: bool = False
    ema_decay: float = 0.999
    lr_scheduler: nn.Cell | None = None
    grouped_lr_scheduler: Any = None
    use_skip_data_by_global_norm: bool = False
    global_norm_spike_threshold: float = 1.0
    calculate_per_token_loss: bool = False
    # MindFormers' Trainer passes these two to any wrapper. The first acts on networks with several losses, and the
    # network here has one output; the second does nothing in MindFormers either.
    print_separate_loss: bool = False
    parallel_config: Any = None

    @classmethod
    def read(cls, keywords: dict[str, Any], use_clip_grad: bool) -> StepOptions:
        """Check `keywords`.

        Raises:
            TypeError: a keyword is unknown, has the wrong type, or asks for what this step cannot do.
            ValueError: a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(keywords) - set(known))
        if unknown:
            raise TypeError(
                f"MFTrainOneStepCell got unknown keyword arguments {', '.join(unknown)}; known are {', '.join(known)}"
            )
        options = cls(**keywords)
        options._check(use_clip_grad)
        return options

    def _check(self, use_clip_grad: bool) -> None:
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):
            raise TypeError(f"gradient_accumulation_steps must be an int, not {type(steps).__name__}")
        if steps < 1:
            raise ValueError(f"gradient_accumulation_steps must be at least 1, not {steps}")
        if not 0.0 <= number("ema_decay", self.ema_decay) < 1.0:
            raise ValueError(f"ema_decay must be at least 0 and below 1, not {self.ema_decay}")
        number("global_norm_spike_threshold", self.global_norm_spike_threshold)
        if self.use_skip_data_by_global_norm and not use_clip_grad:
            raise TypeError("use_skip_data_by_global_norm needs the global norm, so use_clip_grad must be True")
        if self.calculate_per_token_loss:
            raise TypeError(
                "calculate_per_token_loss=True is for a network with two outputs, and this step takes a network with "
                "a single output: return the mean loss"
            )


def number(name: str, value: Any) -> float:
    """`value` as a float; TypeError that names `name` where it is no number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def read_max_grad_norm(max_grad_norm: Any) -> float:
    """The clipping limit; ValueError where it is not above zero."""
    value = number("max_grad_norm", max_grad_norm)
    if math.isnan(value) or value <= 0:
        raise ValueError(f"max_grad_norm must be above zero, not {max_grad_norm}; use_clip_grad=False turns it off")
    return value
