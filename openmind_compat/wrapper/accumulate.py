"""Gradient accumulation on the device."""

from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype


class GradientAccumulator(nn.Cell):
    """The mean of the gradients of `steps` calls.

    Args:
        weights: the optimizer's parameters (ParameterTuple); one float32 Parameter is kept for each.
        steps: how many calls make a group, at least 1.

    Inputs:
        gradients: tuple of float32 Tensors in the order of `weights`.

    Outputs:
        The mean so far, that is the sum over this group divided by `steps`, and whether the group is complete
        (Tensor of shape (), bool). `clear` begins the next group.
    """

    def __init__(self, weights, steps: int) -> None:
        super().__init__(auto_prefix=False)
        self.steps = steps
        self.sums = weights.clone(prefix="accumulated", init="zeros")
        for parameter in self.sums:
            parameter.set_dtype(mstype.float32)
            parameter.requires_grad = False
        self.calls = Parameter(Tensor(0, mstype.int32), name="accumulated_calls", requires_grad=False)
        self.one = Tensor(1, mstype.int32)
        self.enable_tuple_broaden = True

    def construct(self, gradients):
        means = ()
        for i in range(len(self.sums)):
            ops.assign_add(self.sums[i], gradients[i] * (1.0 / self.steps))
            # A value of its own: in PYNATIVE mode the Parameter itself would be zero after `clear`.
            means = means + (self.sums[i] * 1.0,)
        ops.assign_add(self.calls, self.one)
        return means, self.calls >= self.steps

    def clear(self):
        """Forget the group."""
        for i in range(len(self.sums)):
            ops.assign(self.sums[i], ops.zeros_like(self.sums[i]))
        ops.assign(self.calls, ops.zeros_like(self.calls))
        return True
