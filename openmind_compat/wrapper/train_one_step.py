"""MFTrainOneStepCell: loss scale, gradients, clipping and update in one step."""

from __future__ import annotations

import contextlib
from typing import Any

from mindspore import ParameterTuple, Tensor, nn, ops
from mindspore import dtype as mstype

from openmind_compat.wrapper.accumulate import GradientAccumulator
from openmind_compat.wrapper.clip import GlobalNorm, SquareSums, clip_by_norm
from openmind_compat.wrapper.device import runs_on_cpu
from openmind_compat.wrapper.ema import MovingAverage
from openmind_compat.wrapper.options import StepOptions, read_max_grad_norm, read_scale_sense
from openmind_compat.wrapper.overflow import AllFinite, any_rank


def _unscale(gradients: tuple[Tensor, ...], scale: Tensor) -> tuple[Tensor, ...]:
    inverse = ops.reciprocal(scale)
    unscaled = ()
    for gradient in gradients:
        if gradient.dtype != mstype.float32:  # a cast to the same type would copy
            gradient = ops.cast(gradient, mstype.float32)
        unscaled = unscaled + (gradient * inverse,)
    return unscaled


class MFTrainOneStepCell(nn.TrainOneStepWithLossScaleCell):
    """One training step with loss scale, clipping, accumulation and moving average, on CPU and Ascend.

    Documented in mindformers' `mindformers.wrapper.MFTrainOneStepCell` (page of release 1.3); mindformers is not
    needed. Works in GRAPH and PYNATIVE mode, with the same results.

    The gradients are those of the loss times the loss scale, divided by the scale in float32. In data parallel they are
    reduced over the devices by the mean or sum that the parallel context asks for. A step whose gradients overflowed
    leaves weights, optimizer state and `global_step` as they were.

    Args:
        network: Cell with a single output, the loss. A network may bring its own backward: where it has a method
            `loss_and_gradients(*inputs, sens)`, that is called in place of MindSpore's differentiation. `sens`, passed
            last and by position, is the loss scale, float32 of shape (). It returns the loss, unscaled, and the tuple
            of gradients, multiplied by `sens`, in the order of `optimizer.parameters`.
        optimizer: Cell that updates `optimizer.parameters` when called with a tuple of gradients, from `mindspore.nn`,
            from `mindspore.experimental.optim`, or with an attribute `learning_rate` (a Parameter) of its own.
        use_clip_grad: whether to clip by the norm of all gradients.
        max_grad_norm: the norm's limit. Clipping uses torch's formula: gradients under the limit are left alone.
        scale_sense: the loss scale. A number or a Tensor of shape () or (1,) stays until `set_sense_scale`; fractions
            are kept. A Cell such as `nn.DynamicLossScaleUpdateCell` is called in each step to update it.
        local_norm: whether to return the sums of squares and the sizes of the gradients as well.
        **kwargs: `gradient_accumulation_steps` (int, default 1): the n-th call updates with the mean of the gradients
            of n calls. `use_ema` (default False) and `ema_decay` (default 0.999): keep an exponential moving average of
            the trained parameters, see `ema_weights`. Of MindFormers' later keywords:
            `use_skip_data_by_global_norm` and `global_norm_spike_threshold` leave out the update where the norm reaches
            the threshold; `grouped_lr_scheduler` with `lr_scheduler` makes the latter the learning rate returned;
            `parallel_config` and `print_separate_loss` are accepted and do nothing for a network with one loss;
            `calculate_per_token_loss=True` is refused.

    Inputs:
        *inputs: Tensors of shape (N, ...), handed to the network.

    Outputs:
        A tuple of 5, or of 7 where `local_norm` is true.

        - **loss**: in the network's own shape and dtype, unscaled.
        - **overflow**: bool of shape ().
        - **loss scale**: float32 in the shape of `scale_sense`, after this step's update.
        - **learning rate**: float32 of shape (), that of this step. Where parameter groups have their own, the last
          group's.
        - **global norm**: float32 of shape (1,), before clipping; None where `use_clip_grad` is false.
        - **local norm**: float32 of shape (n,), the sum of squares of each of the n gradients on this device, before
          reduction and clipping.
        - **size**: int64 of shape (n,), the number of elements of each.

        With accumulation, the calls in between update nothing. Their loss and local norm are their own micro-batch's;
        global norm is that of the sum so far divided by n, and overflow tells whether that sum is finite. Only the call
        that ends the group updates the loss scale.

    Raises:
        TypeError: `scale_sense` is neither a number, nor a Tensor, nor a Cell (a bool is no number); a keyword is
            unknown or of the wrong type; the optimizer does not tell its learning rate.
        ValueError: the shape of `scale_sense` is neither () nor (1,); it is not positive and finite; `max_grad_norm` is
            not above zero while clipping; a keyword's value is out of range.

    The step's parts are methods that `construct` composes and that other Cells may compile on their own, see
    `openmind_compat.wrapper.phases`: `loss_and_gradients`, `check_overflow`, `global_norm`, `clip_gradients`, `update`.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        use_clip_grad: bool = False,
        max_grad_norm: float = 1.0,
        scale_sense: int | float | Tensor | nn.Cell = 1.0,
        local_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        options = StepOptions.read(kwargs, use_clip_grad)
        limit = read_max_grad_norm(max_grad_norm) if use_clip_grad else 0.0
        super().__init__(network, optimizer, read_scale_sense(scale_sense))
        self.use_clip_grad = bool(use_clip_grad)
        self.max_grad_norm = limit
        self.local_norm = bool(local_norm)
        self.own_backward = callable(getattr(network, "loss_and_gradients", None))

        self.check_by_value = runs_on_cpu()
        self.all_finite = AllFinite()
        self.norm_of_all = GlobalNorm()
        self.square_sums = SquareSums()
        self.sizes = Tensor([weight.size for weight in self.weights], mstype.int64)

        self.skips_spikes = bool(options.use_skip_data_by_global_norm)
        self.spike_threshold = float(options.global_norm_spike_threshold)

        self.accumulates = options.gradient_accumulation_steps > 1
        if self.accumulates:
            self.accumulator = GradientAccumulator(self.weights, int(options.gradient_accumulation_steps))
        self.averages = bool(options.use_ema)
        if self.averages:
            self.moving_average = MovingAverage(self.weights, float(options.ema_decay))

        self.lr_source = self._find_learning_rate(options)
        if self.lr_source == "given":
            self.lr_scheduler = options.lr_scheduler

    def _find_learning_rate(self, options: StepOptions) -> str:
        """Where the learning rate is read; a constant of the graph."""
        if options.grouped_lr_scheduler is not None and options.lr_scheduler is not None:
            return "given"
        if hasattr(self.optimizer, "lrs"):  # mindspore.experimental.optim
            return "experimental"
        if not hasattr(self.optimizer, "learning_rate"):
            raise TypeError(f"optimizer: {type(self.optimizer).__name__} has no attribute learning_rate to read")
        scheduled = getattr(self.optimizer, "dynamic_lr", False)
        grouped = getattr(self.optimizer, "is_group_lr", False)
        return ("scheduled" if scheduled else "constant") + (" groups" if grouped else "")

    def construct(self, *inputs):
        loss, gradients = self.local_loss_and_gradients(*inputs)
        if self.local_norm:
            local_norm = self.square_sums(gradients)
        gradients = self.grad_reducer(gradients)

        if self.accumulates:
            gradients, complete = self.accumulator(gradients)
            overflow = self.find_overflow(gradients)
            if complete:
                overflow = self.process_loss_scale(overflow)
            proceed = ops.logical_and(complete, ops.logical_not(overflow))
        else:
            overflow = self.check_overflow(gradients)
            proceed = ops.logical_not(overflow)

        norm = None
        if self.use_clip_grad:
            norm = self.global_norm(gradients)
            gradients = self.clip_gradients(gradients, norm)
            if self.skips_spikes:
                proceed = ops.logical_and(proceed, norm.reshape(()) < self.spike_threshold)

        learning_rate = self.current_learning_rate()
        if proceed:
            loss = ops.depend(loss, self.update(gradients))
        if self.accumulates:
            if complete:
                loss = ops.depend(loss, self.accumulator.clear())

        scale = self.current_loss_scale()
        if self.local_norm:
            return loss, overflow, scale, learning_rate, norm, local_norm, self.sizes
        return loss, overflow, scale, learning_rate, norm

    def loss_and_gradients(self, *inputs):
        """The loss (unscaled), and the gradients (unscaled, float32, reduced over the devices) as a tuple."""
        loss, gradients = self.local_loss_and_gradients(*inputs)
        return loss, self.grad_reducer(gradients)

    def local_loss_and_gradients(self, *inputs):
        """As `loss_and_gradients`, of this device alone."""
        scale = self.scale_sense.reshape(())
        if not self.check_by_value:
            # Clears the device's floating-point status before the backward whose status is read later.
            _, scale = self.start_overflow_check(scale, scale)
        if self.own_backward:
            loss, gradients = self.network.loss_and_gradients(*inputs, scale)
        else:
            loss = self.network(*inputs)
            sens = ops.ones_like(loss) * ops.cast(scale, loss.dtype)
            gradients = self.grad(self.network, self.weights)(*inputs, sens)
        return loss, _unscale(gradients, scale)

    def check_overflow(self, gradients):
        """Whether `gradients` overflowed (bool of shape ()); a loss scale Cell updates the scale by it."""
        return self.process_loss_scale(self.find_overflow(gradients))

    def find_overflow(self, gradients):
        """Whether `gradients` overflowed (bool of shape ()), with no effect on the loss scale."""
        status = Tensor([0] * 8, mstype.int32)
        return self.get_overflow_status(status, gradients).reshape(())

    def get_overflow_status(self, status, compute_output):
        """MindSpore's own check, where the device has its kernels; on the CPU, whether a gradient is not finite."""
        if not self.check_by_value:
            return super().get_overflow_status(status, compute_output)
        overflow = ops.logical_not(self.all_finite(compute_output))
        if self.is_distributed:
            overflow = any_rank(overflow, self.allreduce)
        return overflow

    def global_norm(self, gradients):
        """The norm of all gradients taken as one vector, float32 of shape (1,)."""
        return self.norm_of_all(gradients)

    def clip_gradients(self, gradients, norm):
        """`gradients`, whose norm is `norm`, scaled down to `max_grad_norm` where they are over it."""
        return clip_by_norm(gradients, norm, self.max_grad_norm)

    def update(self, gradients):
        """Let the optimizer update the parameters, and the moving average follow where there is one."""
        result = self.optimizer(gradients)
        if self.averages:
            result = ops.depend(result, self.moving_average())
        return result

    def current_learning_rate(self):
        """The learning rate of the update that comes next, float32 of shape (); the last group's where there are."""
        if self.lr_source == "given":
            rate = self.lr_scheduler(self.optimizer.global_step)
        elif self.lr_source == "experimental":
            rate = self.optimizer.lrs[-1]
        elif self.lr_source == "scheduled groups":
            rate = self.optimizer.learning_rate[-1](self.optimizer.global_step)
        elif self.lr_source == "scheduled":
            rate = self.optimizer.learning_rate(self.optimizer.global_step)
        elif self.lr_source == "constant groups":
            rate = self.optimizer.learning_rate[-1]
        else:
            rate = self.optimizer.learning_rate
        # Multiplied so that PYNATIVE mode returns a value, not the Parameter, which changes later.
        return ops.cast(rate * 1.0, mstype.float32).reshape(())

    def current_loss_scale(self):
        """The loss scale as it is now, float32 in the shape of `scale_sense`."""
        return self.scale_sense * 1.0

    def set_sense_scale(self, sens: Tensor) -> None:
        """Set the loss scale, of which the next step is the first to use it.

        Args:
            sens: Tensor in the shape of the `scale_sense` that was given.

        Raises:
            TypeError: it is no Tensor.
            ValueError: its shape is another, or it is not positive and finite.
        """
        if not isinstance(sens, Tensor):
            raise TypeError(f"sens must be a Tensor, not {type(sens).__name__}")
        if sens.shape != self.scale_sense.shape:
            raise ValueError(f"sens: its shape must be {self.scale_sense.shape}, not {sens.shape}")
        # In place: a graph that is compiled already keeps the storage that it was compiled with.
        ops.assign(self.scale_sense, read_scale_sense(sens))

    @property
    def ema_parameters(self) -> ParameterTuple:
        """The moving average, one float32 Parameter for each of `optimizer.parameters`, named `ema.<name>`."""
        return self._require_average().averages

    def ema_weights(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the network's parameters have the moving average's values, for evaluating and saving."""
        return self._require_average().in_place_of_weights()

    def restart_ema(self) -> None:
        """Let the moving average begin again at the present weights, after loading some for instance."""
        self._require_average().restart()

    def _require_average(self) -> MovingAverage:
        if not self.averages:
            raise RuntimeError("there is no moving average: this step was made without use_ema=True")
        return self.moving_average
