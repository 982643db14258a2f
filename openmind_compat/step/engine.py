"""Runs a Trainer's leaves on MindSpore: captures them once for each kind of batch, and keeps what was compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openmind_compat.capture import CapturedGraph, capture, join_inputs, split_inputs
from openmind_compat.log import get_logger, warn_once
from openmind_compat.runtime import load_mindspore, set_up
from openmind_compat.step.optimizer import OptimizerState
from openmind_compat.step.phases import CapturedNetwork, LoopStep, NormPhase, SumPhase, Targets
from openmind_compat.step.update import Bucket, DeviceUpdate
from openmind_compat.step.weights import Weights
from openmind_compat.translate import OPERATORS, translate
from openmind_compat.translate.cell import to_mindspore
from openmind_compat.wrapper import ForwardBackwardPhase, UpdatePhase

if TYPE_CHECKING:
    from openmind_compat.step.optimizer import MindSporeOptimizer

logger = get_logger(__name__)

# From here on a script's batches are told apart so finely that compiling dominates: worth a word.
_MANY_GRAPHS = 8


@dataclass
class Timings:
    """Seconds spent on getting graphs ready; ``compile`` includes each graph's first run."""

    capture: float = 0.0
    translate: float = 0.0
    compile: float = 0.0
    graphs: int = 0


@dataclass
class _Gradients:
    """Gradients of the accumulation group so far, on the device."""

    names: tuple[str, ...] = ()
    tensors: tuple[Any, ...] = ()
    clip: float = 1.0


@dataclass(frozen=True)
class _Graph:
    """A leaf ready to run for one kind of batch."""

    captured: CapturedGraph
    source: str  # of the translated construct, for people
    run: Callable[..., Any]


@dataclass
class _Update:
    """A compiled update and the step counts it continues."""

    step: LoopStep
    optimizer: DeviceUpdate
    phase: UpdatePhase
    groups: tuple[int, ...]  # parameter group of each bucket
    members: tuple[tuple[str, ...], ...]  # parameter names of each bucket
    gradient_order: tuple[int, ...]  # position of each member's gradient among those of the group


class Engine:
    """MindSpore side of one model.

    Args:
        module: The torch model. Its parameters become views of the engine's weights where memory can be shared.
        mode: 0 GRAPH or 1 PYNATIVE.
        device: "CPU", "Ascend" or "GPU".
        seed: Seed for dropout.
        deterministic: Whether operators must give the same result from run to run.
        share_memory: Whether torch and MindSpore use the same memory; by default on the CPU.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        mode: int,
        device: str,
        seed: int,
        deterministic: bool = False,
        share_memory: bool | None = None,
    ) -> None:
        self.module = module
        self.mode, self.device, self.seed = mode, device, seed
        set_up(mode, device, deterministic)
        load_mindspore().set_seed(seed)
        self.weights = Weights(module, shared=device == "CPU" if share_memory is None else share_memory)
        self.optimizer_state = OptimizerState()
        self.timings = Timings()
        self._graphs: dict[Any, _Graph] = {}
        self._gradients = _Gradients()
        self._updates: dict[Any, _Update] = {}
        self._sum, self._norms = SumPhase(), {}

    def _begin(self) -> None:
        set_up(self.mode, self.device)
        self.weights.reclaim()

    # -- training ------------------------------------------------------------------------------------------------

    def forward_backward(
        self, leaf: Callable[[Any], torch.Tensor], inputs: Any, share: float, watch: object | None = None
    ) -> torch.Tensor:
        """Loss of one micro-batch; its gradients, times ``share``, are added to those of the group.

        Args:
            leaf: Computes the 0-d loss from the batch with the torch module; captured, never run for its result.
            inputs: Batch, any nesting of CPU tensors.
            share: What the loss counts for in the group (1 over the number of micro-batches, or 1).
            watch: Object on which ``leaf`` may leave things behind.

        Returns:
            The loss, not multiplied by ``share``, 0-d, on the CPU.
        """
        self._begin()
        graph, tensors = self._prepare("the loss", leaf, inputs, training=True, key=(), watch=watch)
        sens = load_mindspore().Tensor(share, load_mindspore().float32)
        loss, gradients = graph.run(*tensors, sens)
        names = graph.captured.gradients
        if not self._gradients.tensors:
            self._gradients = _Gradients(names, tuple(gradients))
        elif self._gradients.names == names:
            self._gradients.tensors = tuple(self._sum(*self._gradients.tensors, *gradients))
        else:
            self._merge(names, gradients)
        return to_torch(loss)

    def _merge(self, names: Sequence[str], gradients: Sequence[Any]) -> None:
        """Add gradients of a micro-batch in which other parameters took part."""
        total = dict(zip(self._gradients.names, self._gradients.tensors))
        for name, gradient in zip(names, gradients):
            total[name] = total[name] + gradient if name in total else gradient
        self._gradients.names, self._gradients.tensors = tuple(total), tuple(total.values())

    def clip_gradients(self, max_norm: float) -> torch.Tensor:
        """Norm of the group's gradients, 0-d; the update will scale them down to ``max_norm``."""
        names = self._gradients.names
        if names not in self._norms:
            self._norms[names] = NormPhase(LoopStep(CapturedNetwork(None), self._targets(names)))
        norm = to_torch(self._norms[names](*self._gradients.tensors)).reshape(())
        share = max_norm / (norm.item() + 1e-6)
        self._gradients.clip = 1.0 if share > 1.0 else share  # not min(): a norm that is not a number must show
        return norm

    def _targets(self, names: Sequence[str]) -> Targets:
        return Targets([self.weights.parameters[name] for name in names])

    def drop_gradients(self) -> None:
        """Forget the group's gradients."""
        self._gradients = _Gradients()

    @property
    def has_gradients(self) -> bool:
        return bool(self._gradients.tensors)

    def update(self, optimizer: MindSporeOptimizer) -> None:
        """One optimizer step with the group's gradients, which are used up by it."""
        if not self.has_gradients:
            raise RuntimeError(
                "the optimizer was stepped without a gradient on the MindSpore engine. An overridden `training_step` "
                "that calls `loss.backward()` computes its gradients in torch, where this engine does not see them: "
                "override `compute_loss`, or call `super().training_step(...)`, or train with framework='pt'"
            )
        set_up(self.mode, self.device)
        self.weights.push()
        update = self._update_for(optimizer)
        numbers = []
        for group, members in zip(update.groups, update.members):
            count = self.optimizer_state.steps.get(members[0], 0) + 1
            numbers.append(optimizer.rule.numbers(optimizer.param_groups[group], count))
            for name in members:
                self.optimizer_state.steps[name] = count
        update.optimizer.set_numbers(self._gradients.clip, numbers)
        tensors = self._gradients.tensors
        learning_rate = update.phase(*(tensors[i] for i in update.gradient_order))
        self.drop_gradients()
        self.weights.updated_on_device(learning_rate)

    def _update_for(self, optimizer: MindSporeOptimizer) -> _Update:
        """The compiled update for the parameters that have gradients; they are grouped by options and step count."""
        available = {name: i for i, name in enumerate(self._gradients.names)}
        buckets: dict[tuple[int, int], list[str]] = {}
        for index, names in enumerate(optimizer.names):
            for name in names:
                if name in available:
                    buckets.setdefault((index, self.optimizer_state.steps.get(name, 0)), []).append(name)
        variants = tuple(
            (index, optimizer.rule.variant(optimizer.param_groups[index]), tuple(names))
            for (index, _), names in buckets.items()
        )
        key = (optimizer.rule, variants, self._gradients.names)
        if key not in self._updates:
            self._updates[key] = self._build_update(optimizer, variants, available)
        return self._updates[key]

    def _build_update(
        self, optimizer: MindSporeOptimizer, variants: Sequence[tuple[int, Any, tuple[str, ...]]], available: dict
    ) -> _Update:
        rule, buckets = optimizer.rule, []
        for index, variant, names in variants:
            parameters = tuple(self.weights.parameters[name] for name in names)
            slots = tuple(
                tuple(self.optimizer_state.ensure(name, parameter, rule, optimizer.param_groups[index]))
                for name, parameter in zip(names, parameters)
            )
            buckets.append(Bucket(parameters, slots, rule.kernel(variant), rule.scalars))
        cell = DeviceUpdate(buckets, self.weights.shared)
        step = LoopStep(CapturedNetwork(None), cell)
        members = tuple(names for _, _, names in variants)
        order = tuple(available[name] for names in members for name in names)
        return _Update(step, cell, UpdatePhase(step), tuple(index for index, _, _ in variants), members, order)

    # -- prediction ----------------------------------------------------------------------------------------------

    def predict(self, leaf: Callable[[Any], Any], inputs: Any, key: Any) -> Any:
        """Result of a leaf that needs no gradients, as torch tensors on the CPU in the leaf's own nesting.

        ``key`` tells apart leaves that would differ for the same batch.
        """
        self._begin()
        graph, tensors = self._prepare("the prediction", leaf, inputs, training=False, key=key)
        results = [to_torch(result) for result in graph.run(*tensors)]
        return join_inputs(results, graph.captured.results)

    # -- graphs --------------------------------------------------------------------------------------------------

    def _prepare(
        self,
        what: str,
        leaf: Callable[[Any], Any],
        inputs: Any,
        training: bool,
        key: Any,
        watch: object | None = None,
    ) -> tuple[_Graph, list[Any]]:
        tensors, layout, signature = split_inputs(inputs)
        trainable = self.weights.push()
        full_key = (what, key, signature, self.module.training, trainable if training else ())
        if full_key not in self._graphs:
            self._graphs[full_key] = self._build(what, leaf, tensors, layout, training, watch)
            self.timings.graphs += 1
            if self.timings.graphs == _MANY_GRAPHS and self.mode == 0:
                warn_once(
                    f"{_MANY_GRAPHS} graphs have been compiled, one for each shape of batch. In GRAPH mode padding to "
                    "one length (padding='max_length') or to few (pad_to_multiple_of=64) saves the compilations."
                )
        return self._graphs[full_key], [to_mindspore_input(tensor) for tensor in tensors]

    def _build(
        self,
        what: str,
        leaf: Callable[[Any], Any],
        tensors: list[torch.Tensor],
        layout: Any,
        training: bool,
        watch: object | None,
    ) -> _Graph:
        start = time.perf_counter()
        captured = capture(
            leaf, self.module, tensors, layout, training=training, translated=OPERATORS, what=what, watch=watch
        )
        for name in captured.side_effects:
            warn_once(
                f"{what} stores a tensor in the Trainer's attribute {name!r}. On MindSpore this code runs once for "
                "each shape of batch, not at every step, so what is stored there is not a value."
            )
        traced = time.perf_counter()
        persistent = self.weights.persistent_buffers()
        buffers = dict(self.module.named_buffers())
        fixed = {n: b for n, b in buffers.items() if n not in persistent and n not in captured.updated_buffers}
        graph = translate(
            captured,
            {name: p for name, p in self.weights.parameters.items() if name not in fixed},
            fixed,
            self.device,
            what,
            rerun=lambda: self._rerun(leaf, tensors, layout, training),
            seed=self.seed,
        )
        done = time.perf_counter()
        self.timings.capture += traced - start
        self.timings.translate += done - traced
        runner = graph.cell
        if training:
            runner = ForwardBackwardPhase(LoopStep(CapturedNetwork(runner), self._targets(captured.gradients)))
        return _Graph(captured, graph.source, _FirstRunTimed(runner, self.timings))

    def _rerun(self, leaf: Callable[[Any], Any], tensors: list[torch.Tensor], layout: Any, training: bool) -> None:
        with torch.set_grad_enabled(training):
            result = leaf(join_inputs(tensors, layout))
            if training:
                torch.autograd.grad(result, [p for p in self.module.parameters() if p.requires_grad], allow_unused=True)

class _FirstRunTimed:
    """A Cell whose first call, in which MindSpore compiles it, is timed."""

    def __init__(self, cell: Any, timings: Timings) -> None:
        self.cell, self._timings = cell, timings

    def __call__(self, *inputs: Any) -> Any:
        if self._timings is None:
            return self.cell(*inputs)
        start = time.perf_counter()
        results = self.cell(*inputs)
        results[0].asnumpy()  # waits for the graph
        self._timings.compile += time.perf_counter() - start
        self._timings = None
        return results


def to_mindspore_input(tensor: torch.Tensor) -> Any:
    """A batch tensor as MindSpore sees it: the same memory where that is possible."""
    if tensor.dtype == torch.bfloat16:  # NumPy, which both sides know, does not
        return to_mindspore(tensor)
    array = tensor.detach().cpu().numpy()
    return load_mindspore().Tensor.from_numpy(array if array.flags.c_contiguous else array.copy())


def to_torch(tensor: Any) -> torch.Tensor:
    """A result as a torch tensor of its own."""
    return torch.from_numpy(np.array(tensor.asnumpy()))


def plain_containers(inputs: Any) -> Any:
    """A batch with dict, list and tuple for every other kind of container, which the capture would not look into."""
    if isinstance(inputs, dict) or hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):
        return {key: plain_containers(inputs[key]) for key in inputs.keys()}
    if isinstance(inputs, (list, tuple)):
        return type(inputs)(plain_containers(value) for value in inputs) if type(inputs) in (list, tuple) else inputs
    return inputs



