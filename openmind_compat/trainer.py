"""The Trainer: transformers' own loop, with the leaves that touch the device on MindSpore.

Only small public hooks of ``transformers.Trainer`` are overridden; data, callbacks, logging, evaluation, checkpoints
and resume are transformers' code. With framework "pt" nothing here takes part.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

from openmind_compat.log import get_logger, warn_once

logger = get_logger(__name__)


class Trainer(transformers.Trainer):
    """``transformers.Trainer`` whose forward, backward, clipping, optimizer step and prediction run on MindSpore.

    Takes the parameters of ``transformers.Trainer``, in its order. The framework is that of ``args``
    (:class:`openmind_compat.TrainingArguments`); arguments of transformers' own class name none, and train on torch,
    with a warning.

    Raises:
        ValueError: The model, the optimizer or an overridden method is one that the MindSpore engine cannot run.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._engine: Any = None
        self._model: torch.nn.Module | None = None
        super().__init__(*_with_arguments(args, kwargs), **kwargs)
        if not hasattr(self.args, "framework"):
            warn_once(
                f"args is a {type(self.args).__module__}.{type(self.args).__qualname__}, which names no framework, so "
                "this Trainer runs on torch. For MindSpore import TrainingArguments from openmind_compat too"
            )
        if self._on_mindspore:
            self._check_overrides()
            self._check_model()
            if self.optimizer is not None:
                self.optimizer = self._adopt(self.optimizer)
            self._show_weights_to_callbacks()

    # -- which engine --------------------------------------------------------------------------------------------

    @property
    def _on_mindspore(self) -> bool:
        return getattr(self.args, "framework", "pt") == "ms"

    @property
    def engine(self) -> Any:
        """The :class:`~openmind_compat.step.Engine` of this Trainer's model; made when first needed."""
        if not self._on_mindspore:
            raise AttributeError("a Trainer with framework='pt' has no MindSpore engine")
        if self._engine is None:
            from openmind_compat.step import Engine

            args = self.args
            self._engine = Engine(self._model, args.mode, args.device_target, args.seed, args.full_determinism)
        return self._engine

    # transformers assigns and reads `model`; so may a script, at any moment, and then it finds current weights.
    @property
    def model(self) -> torch.nn.Module | None:
        """The torch model, with the weights of the last step."""
        if self._engine is not None and not _called_from_the_loop():
            self._engine.weights.lend()
        return self._model

    @model.setter
    def model(self, model: torch.nn.Module | None) -> None:
        if model is not self._model:
            self._engine = None
        self._model = model

    # -- refusals, before any training ---------------------------------------------------------------------------

    def _check_overrides(self) -> None:
        """A `training_step` of the script's own must come down to ours; one that backpropagates itself cannot."""
        step = type(self).training_step
        if step is Trainer.training_step:
            return
        calls = getattr(inspect.unwrap(step), "__code__", None)
        if calls is not None and "training_step" not in calls.co_names:
            raise ValueError(
                f"{type(self).__name__}.training_step: on MindSpore the backward runs in the captured graph, and this "
                "override does not call super().training_step(...); override compute_loss instead, or train with "
                "framework='pt'"
            )

    def _check_model(self) -> None:
        if self._model is None:
            return
        if not isinstance(self._model, torch.nn.Module):
            raise ValueError(
                f"model={type(self._model).__name__}: the MindSpore engine takes a torch.nn.Module; MindSpore Cells "
                "and MindFormers models are not supported in this release"
            )
        for name, parameter in self._model.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"model: parameter {name} is {parameter.dtype}; the MindSpore engine computes in float32 in this "
                    "release. Load the model with torch_dtype=torch.float32, or call model.float()"
                )

    # -- leaves --------------------------------------------------------------------------------------------------

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns the loss as transformers logs it, 0-d, on the CPU."""
        if not self._on_mindspore:
            return super().training_step(model, inputs, *args, **kwargs)
        num_items = args[0] if args else kwargs.get("num_items_in_batch")
        self._adopt_optimizer()
        model.train()
        inputs, leaf = self._loss_leaf(model, inputs, num_items)
        share = self._share_of_group(num_items)
        # accelerate divides once more where it was told to accumulate by itself.
        backward_share = share / self.accelerator.gradient_accumulation_steps
        loss = self.engine.forward_backward(leaf, inputs, backward_share, watch=self)
        return loss * share

    def _loss_leaf(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items: Any
    ) -> tuple[dict[str, Any], Callable[[Any], torch.Tensor]]:
        """The batch as the engine takes it, and what computes the loss from it.

        ``num_items`` is an input like the others, so that no value of it is compiled into a graph.
        """
        from openmind_compat.step.engine import plain_containers

        batch = {"inputs": plain_containers(self._prepare_inputs(inputs))}
        takes_items = self._compute_loss_takes("num_items_in_batch")
        if num_items is not None and takes_items:
            batch["num_items"] = torch.as_tensor(num_items)

        def loss(batch: dict[str, Any]) -> torch.Tensor:
            extra = {"num_items_in_batch": batch.get("num_items")} if takes_items else {}
            with self._state_is_watched():
                value = self.compute_loss(model, dict(batch["inputs"]), **extra)
            value = value[0] if isinstance(value, tuple) else value
            one_element = isinstance(value, torch.Tensor) and value.dim() and value.numel() == 1
            return value.reshape(()) if one_element else value

        return batch, loss

    @contextlib.contextmanager
    def _state_is_watched(self) -> Iterator[None]:
        """Say so where the loss reads `self.state`, whose value would be compiled in."""
        state = self.state
        self.state = _WatchedState(state)
        try:
            yield
        finally:
            self.state = state

    def _compute_loss_takes(self, name: str) -> bool:
        """Whether `compute_loss`, which scripts override with the signature of their day, takes an argument."""
        parameters = inspect.signature(self.compute_loss).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def _share_of_group(self, num_items: Any) -> float:
        """What a micro-batch's loss counts for: it is averaged here unless the loss was divided by all items."""
        divided = self.model_accepts_loss_kwargs and num_items is not None
        if (divided and self._compute_loss_takes("num_items_in_batch")) or self.compute_loss_func is not None:
            return 1.0
        return 1.0 / self.current_gradient_accumulation_steps

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Loss, logits and labels of one evaluation batch, as torch tensors on the CPU."""
        if not self._on_mindspore or self._generates(prediction_loss_only):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **kwargs)
        from openmind_compat.step.engine import plain_containers

        step = super().prediction_step

        def leaf(batch: dict[str, Any]) -> Any:
            with self._compute_loss_of_any_signature():
                return step(model, batch, prediction_loss_only, ignore_keys=ignore_keys)

        key = (prediction_loss_only, None if ignore_keys is None else tuple(ignore_keys))
        return self.engine.predict(leaf, plain_containers(self._prepare_inputs(inputs)), key)

    @contextlib.contextmanager
    def _compute_loss_of_any_signature(self) -> Iterator[None]:
        """transformers hands `num_items_in_batch` to a `compute_loss` of a time before it, too: leave it out."""
        if self._compute_loss_takes("num_items_in_batch"):
            yield
            return
        own, shadowed = self.compute_loss, vars(self).get("compute_loss")
        self.compute_loss = lambda *args, num_items_in_batch=None, **kwargs: own(*args, **kwargs)
        try:
            yield
        finally:
            if shadowed is None:
                del self.compute_loss
            else:
                self.compute_loss = shadowed

    def _generates(self, prediction_loss_only: bool) -> bool:
        """Generation is a loop over data, which a graph cannot hold: it runs on the torch module."""
        if prediction_loss_only or not getattr(self.args, "predict_with_generate", False):
            return False
        warn_once("predict_with_generate: generation runs on the torch model, with the current weights, on the CPU")
        self.engine.weights.pull()
        return True

    # -- optimizer -----------------------------------------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """transformers builds the optimizer, groups and all; on MindSpore its update runs there."""
        super().create_optimizer(*args, **kwargs)
        self._adopt_optimizer()
        return self.optimizer

    def _adopt_optimizer(self) -> None:
        if self._on_mindspore and self.optimizer is not None:
            self.optimizer = self._adopt(self.optimizer)

    def _adopt(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        from openmind_compat.step import MindSporeOptimizer

        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
        if isinstance(inner, MindSporeOptimizer) and inner.engine is self.engine:
            return optimizer
        if inner is not optimizer:
            optimizer.optimizer = MindSporeOptimizer(inner, self.engine)
            return optimizer
        return MindSporeOptimizer(optimizer, self.engine)

    def create_accelerator_and_postprocess(self) -> None:
        """Clipping is asked of the accelerator; on MindSpore the engine answers."""
        super().create_accelerator_and_postprocess()
        if self._on_mindspore:
            self.accelerator.clip_grad_norm_ = self._clip_grad_norm_

    def _clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        if norm_type != 2:
            raise ValueError(f"norm_type={norm_type}: the MindSpore engine clips by the 2-norm")
        return self.engine.clip_gradients(max_norm)

    # -- looking at the weights ----------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; weights that the script changed since are taken over first."""
        self._start()
        if self._engine is not None:
            self._engine.drop_gradients()  # of a group that an interrupted run left unfinished
        output = super().train(*args, **kwargs)
        self._settle()
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in transformers."""
        self._start()
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers."""
        self._start()
        return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with the weights of the last step."""
        self._settle()
        super().save_model(*args, **kwargs)

    def _start(self) -> None:
        if self._engine is not None:
            self._engine.weights.push()

    def _settle(self) -> None:
        if self._engine is not None:
            self._engine.weights.lend()

    def _show_weights_to_callbacks(self) -> None:
        """Callbacks are handed the torch model: before one of the script's own runs, it has the weights of the step."""
        call_event = self.callback_handler.call_event

        def with_current_weights(event: str, *args: Any, **kwargs: Any) -> Any:
            if any(_may_look(callback, event) for callback in self.callback_handler.callbacks):
                self._settle()
            return call_event(event, *args, **kwargs)

        self.callback_handler.call_event = with_current_weights


class _WatchedState:
    """A TrainerState as a loss sees it while it is captured."""

    def __init__(self, state: Any) -> None:
        vars(self)["_state"] = state

    def __getattr__(self, name: str) -> Any:
        value = getattr(vars(self)["_state"], name)
        warn_once(
            f"the loss reads state.{name}. On MindSpore this code runs once for each shape of batch, so the value of "
            f"now, {value!r}, is compiled in and stays. Let the data collator put a number that changes into the "
            "batch, as a tensor, or train with framework='pt'"
        )
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_state"], name, value)


def _with_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A Trainer made without ``args`` has transformers' defaults, and the framework that is there."""
    given = inspect.signature(transformers.Trainer.__init__).bind_partial(None, *args, **kwargs).arguments
    if given.get("args") is not None:
        return args
    from openmind_compat.arguments import TrainingArguments

    default = TrainingArguments(output_dir="tmp_trainer")
    if len(args) > 1:
        return (args[0], default, *args[2:])
    kwargs["args"] = default
    return args


def _may_look(callback: Any, event: str) -> bool:
    """Whether a callback is the script's own and does something at an event."""
    if type(callback).__module__.startswith("transformers."):
        return False
    method = getattr(callback, event, None)  # of the instance, where somebody put one there
    return getattr(method, "__func__", method) is not getattr(transformers.TrainerCallback, event, None)


def _called_from_the_loop() -> bool:
    """Whether `model` is read by transformers' own loop, which does so several times a step without need of weights."""
    return sys._getframe(2).f_globals.get("__name__") == "transformers.trainer"


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` on MindSpore. Generation runs on the torch model."""
