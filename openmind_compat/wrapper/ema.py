"""The exponential moving average of the trained parameters."""

import contextlib
from collections.abc import Iterator

from mindspore import dtype as mstype
from mindspore import nn, ops


class MovingAverage(nn.Cell):
    """average = decay * average + (1 - decay) * parameter, at each call. It starts at the parameters' values.

    Args:
        weights: the parameters (ParameterTuple); one float32 Parameter named `ema.<name>` is kept for each.
        decay: how much of the average stays at each call.
    """

    def __init__(self, weights, decay: float) -> None:
        super().__init__(auto_prefix=False)
        self.decay = decay
        self.weights = weights
        self.averages = weights.clone(prefix="ema")
        for parameter in self.averages:
            parameter.set_dtype(mstype.float32)
            parameter.requires_grad = False

    def construct(self):
        for i in range(len(self.averages)):
            weight = ops.cast(self.weights[i], mstype.float32)
            ops.assign(self.averages[i], self.averages[i] * self.decay + weight * (1.0 - self.decay))
        return True

    def restart(self) -> None:
        """Begin again at the parameters' present values, after weights were loaded for instance."""
        for average, weight in zip(self.averages, self.weights, strict=True):
            ops.assign(average, weight.astype(mstype.float32))

    @contextlib.contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the parameters the average's values inside the block, and their own back after it.

        Both are assigned in place, so graphs that are compiled already see them.
        """
        kept = [weight.value().copy() for weight in self.weights]
        try:
            for weight, average in zip(self.weights, self.averages, strict=True):
                ops.assign(weight, average.astype(weight.dtype))
            yield
        finally:
            for weight, value in zip(self.weights, kept, strict=True):
                ops.assign(weight, value)
