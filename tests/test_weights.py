"""One set of weights from two sides: on a device memory is not shared, which is tried here on the CPU.

The reference is transformers' Trainer on torch, whose callbacks see and change the only weights there are.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
import torch
import transformers
from tiny import assert_same_pair, bag, run_both

import openmind_compat.step


@pytest.fixture(params=[True, False], ids=["shared", "mirrored"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Trainers whose engine shares memory with torch, or keeps weights of its own as on a device."""
    engine = functools.partial(openmind_compat.step.Engine, share_memory=request.param)
    monkeypatch.setattr(openmind_compat.step, "Engine", engine)
    return request.param


class Looks(transformers.TrainerCallback):
    """Notes a weight at some events, through the model that callbacks are given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, torch.Tensor]] = []

    def _look(self, event: str, model: torch.nn.Module) -> None:
        self.seen.append((event, next(model.parameters()).detach().clone()))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._look("before", model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._look("after", model)


class Changes(transformers.TrainerCallback):
    """Shrinks a weight in place at one step, and replaces another's storage at the next."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        first, *_, last = model.parameters()
        if state.global_step == 2:
            with torch.no_grad():
                first.mul_(0.5)
        if state.global_step == 3:
            last.data = last.data + 1.0


def test_callbacks_see_the_weights_of_the_moment(shared: bool) -> None:
    model, rows = bag()
    looks: list[Looks] = []

    def callbacks(model: torch.nn.Module) -> dict[str, Any]:
        looks.append(Looks())
        return {"callbacks": [looks[-1]]}

    pair = run_both(model, rows, trainer=callbacks, max_steps=5)
    assert pair.ours.engine.weights.shared is shared
    reference, ours = (look.seen for look in looks)
    assert [event for event, _ in ours] == [event for event, _ in reference] == ["before", "after"] * 5
    for (event, expected), (_, seen) in zip(reference, ours):
        assert torch.allclose(seen, expected, atol=1e-5), event
    # Every step changed the weight, so a stale one would have been noticed.
    afters = [seen for event, seen in ours if event == "after"]
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(afters, afters[1:]))


def test_what_a_callback_writes_is_trained_on(shared: bool) -> None:
    model, rows = bag()
    pair = run_both(model, rows, trainer=lambda model: {"callbacks": [Changes()]}, max_steps=6)
    assert_same_pair(pair)


def test_the_script_may_change_weights_between_two_runs(shared: bool) -> None:
    model, rows = bag()

    def train_twice(base: type) -> type:
        class Twice(base):
            def train(self, *args: Any, **kwargs: Any) -> Any:
                super().train(*args, **kwargs)
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.add_(0.01)
                return super().train(*args, **kwargs)

        return Twice

    pair = run_both(model, rows, rows[:8], subclass=train_twice, max_steps=3, eval_strategy="steps", eval_steps=1)
    assert_same_pair(pair)


def test_the_model_outlives_its_trainer(shared: bool) -> None:
    model, rows = bag()
    pair = run_both(model, rows, max_steps=2)
    trained, reference = pair.ours.model, pair.reference.model
    del pair
    gc.collect()
    [torch.zeros(1000) for _ in range(100)]  # memory that was freed by mistake would be used again
    for ours, expected in zip(trained.parameters(), reference.parameters()):
        assert torch.allclose(ours, expected, atol=1e-4)
