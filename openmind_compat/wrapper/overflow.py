"""Whether gradients overflowed, on a device that keeps no floating-point status."""

from mindspore import Tensor, jit, nn, ops
from mindspore import dtype as mstype


class AllFinite(nn.Cell):
    """Whether every element of every gradient is finite; the largest finite number is.

    An element times zero is zero when it is finite and NaN when it is not, so a product of matrices with zeros finds
    any Inf or NaN without overflowing itself. It reads each gradient once; IsFinite with a reduction takes ten times as
    long on the CPU, where this is used. The zeros are as long as a gradient's row.

    Inputs:
        gradients: tuple of Tensors of any shape, floating point.

    Outputs:
        Tensor of shape (), bool.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.MatMul()
        self.reduce_sum = ops.ReduceSum()
        self.is_finite = ops.IsFinite()
        # Otherwise a tuple of Tensors is a constant of the graph, which is compiled anew for every tuple.
        self.enable_tuple_broaden = True

    @jit
    def construct(self, gradients):
        sums = ()
        for gradient in gradients:
            if len(gradient.shape) > 1:
                rows = gradient.reshape((gradient.shape[0], -1))
            else:
                rows = gradient.reshape((1, -1))
            zeros = ops.zeros((rows.shape[1], 1), gradient.dtype)
            total = self.reduce_sum(self.product(rows, zeros))
            sums = sums + (ops.cast(total, mstype.float32).reshape((1,)),)
        return self.is_finite(self.reduce_sum(ops.concat(sums)))


def any_rank(flag: Tensor, all_reduce: ops.AllReduce) -> Tensor:
    """Whether `flag` (bool, shape ()) is true on any device."""
    return all_reduce(ops.cast(flag, mstype.float32)) > 0
