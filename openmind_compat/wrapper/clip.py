"""The norm of all gradients, and clipping by it with torch's formula."""

from mindspore import Tensor, jit, nn, ops
from mindspore import dtype as mstype

from openmind_compat.wrapper.device import runs_on_cpu

# torch.nn.utils.clip_grad_norm_ adds this to the norm, so that a norm of zero divides nothing.
EPSILON = 1e-6


class SquareSums(nn.Cell):
    """The sum of squares of each gradient.

    MindSpore's CPU reductions take some thirty times as long as a product of the same vector with itself, which is
    therefore what the CPU uses. On Ascend the product would round to half precision, and the reduction is fast.

    Inputs:
        gradients: tuple of n float32 Tensors of any shape.

    Outputs:
        Tensor of shape (n,), float32.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.as_product = runs_on_cpu()
        self.product = ops.MatMul(transpose_b=True)
        self.reduce_sum = ops.ReduceSum()
        # Otherwise a tuple of Tensors is a constant of the graph, which is compiled anew for every tuple.
        self.enable_tuple_broaden = True

    @jit
    def construct(self, gradients):
        sums = ()
        for gradient in gradients:
            if self.as_product:
                row = gradient.reshape((1, -1))
                total = self.product(row, row).reshape((1,))
            else:
                total = self.reduce_sum(ops.square(gradient)).reshape((1,))
            sums = sums + (total,)
        return ops.concat(sums)


class GlobalNorm(nn.Cell):
    """The Euclidean norm of all gradients taken as one vector.

    Inputs:
        gradients: tuple of float32 Tensors of any shape.

    Outputs:
        Tensor of shape (1,), float32.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.square_sums = SquareSums()
        self.reduce_sum = ops.ReduceSum()
        self.enable_tuple_broaden = True

    @jit
    def construct(self, gradients):
        return ops.sqrt(self.reduce_sum(self.square_sums(gradients))).reshape((1,))


def clip_by_norm(gradients: tuple[Tensor, ...], norm: Tensor, max_norm: float) -> tuple[Tensor, ...]:
    """Scale `gradients` so that their norm is at most `max_norm`, as torch.nn.utils.clip_grad_norm_ does.

    The coefficient is max_norm / (norm + 1e-6), at most 1: gradients whose norm is under the limit keep every bit.

    Args:
        gradients: Tensors of any shape.
        norm: their norm, of shape () or (1,).
        max_norm: the limit.

    Returns:
        Tensors of the same shapes and dtypes.
    """
    coefficient = ops.minimum(max_norm / (norm.reshape(()) + EPSILON), Tensor(1.0, mstype.float32))
    clipped = ()
    for gradient in gradients:
        clipped = clipped + (gradient * coefficient,)
    return clipped
