"""Optimizers and schedules of the Trainer on MindSpore against torch's own."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch
import transformers
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

BAG, ROWS = tiny.bag()
STEPS = dict(max_steps=8)


def passed(make_optimizer, make_scheduler=None):
    """A script's own optimizer, built from the model of the run, and its scheduler."""

    def trainer(model):
        optimizer = make_optimizer(model)
        return {"optimizers": (optimizer, make_scheduler(optimizer) if make_scheduler else None)}

    return trainer


def decaying(optimizer):
    return LambdaLR(optimizer, lambda step: 0.8**step)


# -- by name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "sgd"])
def test_optim(optim):
    rate = 0.3 if optim == "sgd" else 3e-3
    options = dict(adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5, weight_decay=0.1, warmup_steps=2)
    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, optim=optim, learning_rate=rate, **options, **STEPS))


def test_optim_in_graph_mode():
    options = dict(adam_beta1=0.8, weight_decay=0.1, warmup_steps=2, max_grad_norm=0.3)
    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, mode=tiny.GRAPH, **options, **STEPS))


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("linear", {}),
        ("cosine", {}),
        ("constant_with_warmup", {}),
        ("cosine_with_restarts", {"num_cycles": 2}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-5}),
    ],
)
def test_schedule(schedule, options):
    pair = tiny.run_both(BAG, ROWS, lr_scheduler_type=schedule, lr_scheduler_kwargs=options, warmup_steps=3, **STEPS)
    tiny.assert_same_pair(pair)
    assert len(set(pair.logs.lr)) > 2


def test_rate_that_follows_the_evaluation():
    # The threshold is so high that no evaluation counts as better.
    plateau = {"patience": 1, "factor": 0.5, "threshold": 0.9}
    pair = tiny.run_both(
        BAG,
        ROWS,
        ROWS[:8],
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs=plateau,
        eval_strategy="steps",
        eval_steps=1,
        **STEPS,
    )
    tiny.assert_same_pair(pair)
    assert len(set(pair.logs.lr)) > 2


# -- passed by the script --------------------------------------------------------------------------------------------

OWN = {
    "adamw": lambda model: AdamW(model.parameters(), lr=3e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "adamw-maximize": lambda model: AdamW(model.parameters(), lr=1e-3, maximize=True),
    "adam": lambda model: Adam(model.parameters(), lr=3e-3, weight_decay=0.1),
    "sgd": lambda model: SGD(model.parameters(), lr=0.2, weight_decay=0.01),
    "sgd-momentum": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "sgd-nesterov": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "head-only": lambda model: AdamW(model.head.parameters(), lr=1e-2),
    "two-groups": lambda model: AdamW(
        [
            {"params": list(model.head.parameters()), "lr": 1e-2, "betas": (0.5, 0.9)},
            {"params": [model.embedding.weight, *model.hidden.parameters()], "weight_decay": 0.0},
        ],
        lr=1e-3,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_optimizer_and_scheduler(name):
    """The scheduler was built on torch's optimizer and knows no other."""
    pair = tiny.run_both(BAG, ROWS, trainer=passed(OWN[name], decaying), **STEPS)
    tiny.assert_same_pair(pair)
    assert len(set(pair.logs.lr)) == 8


def test_own_optimizer_with_the_arguments_schedule():
    pair = tiny.run_both(BAG, ROWS, trainer=passed(OWN["two-groups"]), lr_scheduler_type="cosine", **STEPS)
    tiny.assert_same_pair(pair)


def test_own_optimizer_that_has_stepped_before():
    """Its moments and step count go on."""

    def stepped(model):
        optimizer = AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            model(**{name: value[None] for name, value in ROWS[0].items()})["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer

    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, trainer=passed(stepped, decaying), **STEPS))


def test_create_optimizer_of_a_subclass():
    def subclass(base):
        class TwoRates(base):
            def create_optimizer(self):
                if self.optimizer is None:
                    head = list(self.model.head.parameters())
                    rest = [p for name, p in self.model.named_parameters() if not name.startswith("head")]
                    self.optimizer = AdamW([{"params": head, "lr": 1e-2}, {"params": rest, "lr": 1e-4}])
                return self.optimizer

        return TwoRates

    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, subclass=subclass, **STEPS))


class AddGroup(transformers.TrainerCallback):
    """Thaws the embedding in the middle of a run, as scripts do that fine-tune a head first."""

    def __init__(self, through):
        self.through = through

    def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        if state.global_step == 3:
            model.embedding.weight.requires_grad_(True)
            target = optimizer if self.through is None else self.through
            target.add_param_group({"params": [model.embedding.weight], "lr": 5e-3})
            lr_scheduler.base_lrs.append(5e-3)  # or torch's scheduler refuses its next step
            lr_scheduler.lr_lambdas.append(lr_scheduler.lr_lambdas[0])


@pytest.mark.parametrize("to_original", [False, True])
def test_group_added_in_the_middle_of_a_run(to_original):
    frozen = copy.deepcopy(BAG)
    frozen.embedding.weight.requires_grad_(False)

    def trainer(model):
        optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        scheduler = LambdaLR(optimizer, lambda step: 1.0)
        callback = AddGroup(optimizer if to_original else None)
        return {"optimizers": (optimizer, scheduler), "callbacks": [callback]}

    pair = tiny.run_both(frozen, ROWS, trainer=trainer, **STEPS)
    tiny.assert_same_pair(pair)
    assert (pair.ours.model.embedding.weight != BAG.embedding.weight).any()


# -- which weights ---------------------------------------------------------------------------------------------------


def test_frozen_parameters_stay():
    frozen = copy.deepcopy(BAG)
    frozen.embedding.weight.requires_grad_(False)
    pair = tiny.run_both(frozen, ROWS, weight_decay=0.1, **STEPS)
    tiny.assert_same_pair(pair)
    assert torch.equal(pair.ours.model.embedding.weight, BAG.embedding.weight)


def test_parameter_that_the_loss_does_not_reach():
    """It has no gradient, so not even weight decay touches it."""
    model = copy.deepcopy(BAG)
    model.unused = torch.nn.Linear(3, 3)
    pair = tiny.run_both(model, ROWS, weight_decay=0.1, **STEPS)
    tiny.assert_same_pair(pair)
    assert torch.equal(pair.ours.model.unused.weight, model.unused.weight)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_tied_weights_stay_one(family):
    model, rows = tiny.FAMILIES[family]()
    pair = tiny.run_both(model, rows, weight_decay=0.01, max_steps=4)
    tiny.assert_same_pair(pair)
    ours = pair.ours.model
    assert ours.get_input_embeddings().weight is ours.get_output_embeddings().weight
