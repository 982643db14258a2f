"""Callbacks of the Trainer on MindSpore: the same events, in the same order, over the same weights, as on torch."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import tiny
import torch
import transformers

import openmind_compat

BAG, ROWS = tiny.bag()
PYNATIVE = {"framework": "ms", "mode": tiny.PYNATIVE}


class Events(transformers.TrainerCallback):
    """Every event with what it can see."""

    def __init__(self):
        self.seen = []

    def _note(self, event, state, control, model, logs=None, metrics=None, **kwargs):
        self.seen.append(
            {
                "event": event,
                "step": state.global_step,
                "epoch": state.epoch,
                "max_steps": state.max_steps,
                "flos": state.total_flos,
                "best": state.best_metric,
                "history": copy.deepcopy(state.log_history),
                "control": copy.copy(vars(control)),
                "training": model.training,
                "logs": dict(logs or {}),
                "metrics": dict(metrics or {}),
                "given": sorted(name for name, value in kwargs.items() if value is not None),
                "weights": {name: value.detach().clone() for name, value in model.state_dict().items()},
            }
        )


def _event(name):
    def method(self, args, state, control, model=None, **kwargs):
        self._note(name, state, control, model, **kwargs)

    return method


EVENTS = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
for _name in EVENTS:
    setattr(Events, _name, _event(_name))


def assert_same_numbers(a, b, path=""):
    """Equal but for rounding and for what a clock says."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for name in a:
            if not any(word in name for word in tiny.TIMING):
                assert_same_numbers(a[name], b[name], f"{path}.{name}")
    elif isinstance(a, list):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same_numbers(x, y, f"{path}[{i}]")
    elif isinstance(a, float):
        # transformers rounds a loss to four digits before it logs it.
        assert b == pytest.approx(a, rel=1e-3, abs=1.1e-4), path
    elif isinstance(a, torch.Tensor):
        assert (a - b).abs().max() < 1e-4, path
    else:
        assert a == b, path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    events = []

    def trainer(model):
        events.append(Events())
        return {"callbacks": [events[-1]]}

    pair = tiny.run_both(
        BAG,
        ROWS[:30],
        ROWS[:10],
        mode=tiny.GRAPH,
        trainer=trainer,
        output_dir=str(tmp_path_factory.mktemp("events")),
        num_train_epochs=2,
        gradient_accumulation_steps=3,
        per_device_train_batch_size=3,  # whole batches: the groups have 3, 3, 3 and 1 of them
        per_device_eval_batch_size=5,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=4,
        logging_steps=2,
    )
    return pair, *(event.seen for event in events)


def test_same_events_with_the_same_state(recorded):
    _, reference, ours = recorded
    assert [entry["event"] for entry in reference] == [entry["event"] for entry in ours]
    assert {entry["event"] for entry in ours} >= set(EVENTS) - {"on_predict"}
    for i, (a, b) in enumerate(zip(reference, ours)):
        assert_same_numbers(a, b, f"{i}:{a['event']}")


def test_callback_sees_the_weights_of_the_moment(recorded):
    """Unchanged until the optimizer's step, changed right after it."""
    _, _, ours = recorded
    for before, after in zip(ours, ours[1:]):
        same = all(torch.equal(before["weights"][name], after["weights"][name]) for name in before["weights"])
        assert same == (after["event"] != "on_optimizer_step"), (before["event"], after["event"])


def test_same_state_at_the_end(recorded):
    pair, _, _ = recorded
    a, b = vars(pair.reference.state).copy(), vars(pair.ours.state).copy()
    for state in (a, b):
        state.pop("stateful_callbacks")
    assert_same_numbers(a, b)


# -- callbacks that change something ---------------------------------------------------------------------------------


class Change(transformers.TrainerCallback):
    """Does something to the model at the end of one step."""

    def __init__(self, change, event="on_step_end", step=3):
        self.change, self.step = change, step
        setattr(self, event, self._at_event)

    def _at_event(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.change(**kwargs)


def scale(model, **kwargs):
    with torch.no_grad():
        model.head.weight.mul_(0.5)


def scale_data(model, **kwargs):
    model.head.weight.data *= 0.5


def replace_data(model, **kwargs):
    model.head.weight.data = model.head.weight.data * 0.5


def replace_parameter(model, **kwargs):
    # The optimizer keeps the old one, on torch as well.
    model.head.weight = torch.nn.Parameter(model.head.weight.detach() * 0.5)


def load(model, **kwargs):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def load_and_assign(model, **kwargs):
    state = {name: value * 0.5 for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        parameter.data = state[name]


def freeze(model, **kwargs):
    model.embedding.weight.requires_grad_(False)


def set_rate(optimizer, **kwargs):
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.5


def zero_moments(optimizer, **kwargs):
    state = optimizer.state_dict()
    for values in state["state"].values():
        values["exp_avg"] = torch.zeros_like(values["exp_avg"])
    optimizer.load_state_dict(state)


CHANGES = [scale, scale_data, replace_data, replace_parameter, load, load_and_assign, freeze, set_rate, zero_moments]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_at_the_end_of_a_step(change):
    pair = tiny.run_both(
        BAG, ROWS, trainer=lambda model: {"callbacks": [Change(change)]}, max_steps=7, weight_decay=0.1
    )
    tiny.assert_same_pair(pair)


@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step", "on_optimizer_step"])
@pytest.mark.parametrize("change", [scale, replace_data], ids=lambda change: change.__name__)
def test_change_elsewhere_in_a_step(change, event):
    pair = tiny.run_both(BAG, ROWS, trainer=lambda model: {"callbacks": [Change(change, event)]}, max_steps=6)
    tiny.assert_same_pair(pair)


def test_change_in_graph_mode():
    """What was compiled reads the weights where they are."""

    def trainer(model):
        return {"callbacks": [Change(scale, step=2), Change(replace_data, step=4), Change(load, step=5)]}

    pair = tiny.run_both(BAG, ROWS, mode=tiny.GRAPH, trainer=trainer, max_steps=8)
    tiny.assert_same_pair(pair)


def test_layer_thawed_in_the_middle_of_a_run():
    """transformers' optimizer does not know the layer, yet its gradient counts for the norm."""
    frozen = copy.deepcopy(BAG)
    frozen.embedding.weight.requires_grad_(False)

    def thaw(model, **kwargs):
        model.embedding.weight.requires_grad_(True)

    pair = tiny.run_both(
        frozen, ROWS, trainer=lambda model: {"callbacks": [Change(thaw)]}, max_steps=7, max_grad_norm=0.1
    )
    tiny.assert_same_pair(pair)


def test_layer_frozen_and_thawed_again():
    """Its moments wait for it, and its own step count goes on from where it was."""

    def thaw(model, **kwargs):
        model.embedding.weight.requires_grad_(True)

    def trainer(model):
        return {"callbacks": [Change(freeze, step=2), Change(thaw, step=4)]}

    tiny.assert_same_pair(tiny.run_both(BAG, ROWS, trainer=trainer, max_steps=8))


# -- the model from outside ------------------------------------------------------------------------------------------


def ours(model, rows=ROWS, mode=tiny.PYNATIVE, **options):
    return tiny.make(
        openmind_compat.Trainer, openmind_compat.TrainingArguments, model, rows, ROWS[:8], mode=mode, **options
    )


def batch(n=4):
    return {name: torch.stack([row[name] for row in ROWS[:n]]) for name in ROWS[0]}


def test_model_after_training_is_an_ordinary_torch_model():
    model = copy.deepcopy(BAG)
    trainer = ours(model, max_steps=3)
    trainer.train()
    assert trainer.model is model
    before = model(**batch())["loss"]
    before.backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    after = model(**batch())["loss"]
    assert after < before
    # And the Trainer sees what torch has made of it.
    trainer.args.per_device_eval_batch_size = 4
    assert trainer.evaluate(ROWS[:4])["eval_loss"] == pytest.approx(after.item(), rel=1e-4)


def test_model_is_copied_and_pickled():
    trainer = ours(copy.deepcopy(BAG), max_steps=2)
    trainer.train()
    for other in (copy.deepcopy(trainer.model), pickle.loads(pickle.dumps(trainer.model))):
        assert tiny.weight_difference(other, trainer.model)[0] == 0
        with torch.no_grad():
            other.head.weight.zero_()
        assert trainer.model.head.weight.abs().sum() > 0, "a copy has memory of its own"
    for args in (copy.deepcopy(trainer.args), pickle.loads(pickle.dumps(trainer.args))):
        assert args.to_dict() == trainer.args.to_dict()


@pytest.mark.parametrize("mode", [tiny.GRAPH, tiny.PYNATIVE])
def test_weights_outlive_the_trainer(mode):
    model = copy.deepcopy(BAG)
    trainer = ours(model, mode=mode, max_steps=2)
    trainer.train()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    del trainer
    gc.collect()
    # Memory that was given back would be handed out again here.
    import mindspore

    noise = [mindspore.Tensor([float(i)] * value.numel()) + 1 for i in range(20) for value in expected.values()]
    assert len(noise) and all(torch.equal(expected[name], value) for name, value in model.state_dict().items())


def test_trainer_is_collected():
    """Nothing keeps a Trainer and its graphs once the script has let go of it."""
    import weakref

    trainer = ours(copy.deepcopy(BAG), max_steps=2)
    trainer.train()
    engine = weakref.ref(trainer.engine)
    del trainer
    gc.collect()
    assert engine() is None


def test_second_training_with_the_same_trainer():
    """transformers keeps the optimizer, moments and all, and starts the schedule anew."""
    results = []
    for trainer_cls, args_cls, extra in (
        (transformers.Trainer, transformers.TrainingArguments, {}),
        (openmind_compat.Trainer, openmind_compat.TrainingArguments, PYNATIVE),
    ):
        trainer = tiny.make(trainer_cls, args_cls, copy.deepcopy(BAG), ROWS, max_steps=4, **extra)
        logs = tiny.record(trainer)
        trainer.train()
        trainer.args.max_steps = 6
        trainer.train()
        results += [trainer, logs]
    reference, reference_logs, second, logs = results
    assert len(logs.loss) == 10
    tiny.assert_same_run(reference_logs, logs)
    tiny.assert_same_weights(reference.model, second.model)


def test_two_trainers_in_two_modes_take_turns():
    """Each on a model of its own; every evaluation of one falls into a step of the other."""

    class AlsoEvaluates(transformers.TrainerCallback):
        def __init__(self, other):
            self.other, self.losses = other, []

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            self.losses.append(self.other.evaluate()["eval_loss"])

    other = ours(copy.deepcopy(BAG), mode=tiny.GRAPH)
    callback = AlsoEvaluates(other)
    reference = (transformers.Trainer, transformers.TrainingArguments, copy.deepcopy(BAG), ROWS)
    _, expected = tiny.run(*reference, max_steps=4)
    trainer = ours(copy.deepcopy(BAG), max_steps=4, trainer={"callbacks": [callback]})
    logs = tiny.record(trainer)
    trainer.train()
    assert tiny.relative(expected.loss, logs.loss) < 1e-4
    assert len(set(callback.losses)) == 1, "the other model stays as it is"


def two_trainers_take_turns(package, extra):
    """Losses of both Trainers after each training of one, and the model."""
    model = copy.deepcopy(BAG)

    def make(rate):
        options = dict(max_steps=3, learning_rate=rate, **extra)
        return tiny.make(package.Trainer, package.TrainingArguments, model, ROWS, ROWS[:8], **options)

    first, second = make(1e-3), make(1e-2)
    losses = []
    for trainer in (first, second, first, second):
        trainer.train()
        losses += [first.evaluate()["eval_loss"], second.evaluate()["eval_loss"]]
    return losses, model


def test_two_trainers_on_one_model():
    """The second takes the weights over, and the first one finds them again."""
    expected, a = two_trainers_take_turns(transformers, {})
    losses, b = two_trainers_take_turns(openmind_compat, PYNATIVE)
    assert tiny.relative(expected, losses) < 1e-4
    tiny.assert_same_weights(a, b)


class Watches(transformers.TrainerCallback):
    """Evaluates the model in training by a Trainer of its own, made in the middle of a step."""

    def __init__(self, package, extra):
        self.package, self.extra = package, extra
        self.watcher, self.losses = None, []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.watcher is None:
            package = self.package
            self.watcher = tiny.make(package.Trainer, package.TrainingArguments, model, None, ROWS[:8], **self.extra)
        self.losses.append(self.watcher.evaluate()["eval_loss"])
        model.train()


def test_trainer_of_another_mode_evaluates_the_model_in_training():
    results = []
    for package, extra, other in ((transformers, {}, {}), (openmind_compat, PYNATIVE, {"mode": tiny.GRAPH})):
        watches = Watches(package, other)
        options = dict(trainer={"callbacks": [watches]}, max_steps=5, **extra)
        trainer, logs = tiny.run(package.Trainer, package.TrainingArguments, copy.deepcopy(BAG), ROWS, **options)
        results.append((trainer, logs, watches.losses))
    (reference, reference_logs, expected), (trainer, logs, losses) = results
    tiny.assert_same_run(reference_logs, logs)
    assert tiny.relative(expected, losses) < 1e-4
    tiny.assert_same_weights(reference.model, trainer.model)


def test_model_whose_shapes_change_is_refused():
    """After `resize_token_embeddings`, say: the optimizer on torch would go on with the old weight."""

    def resize(model, **kwargs):
        model.head = torch.nn.Linear(tiny.WIDTH, 7)

    trainer = ours(copy.deepcopy(BAG), max_steps=5, trainer={"callbacks": [Change(resize)]})
    with pytest.raises(RuntimeError, match=r"head\.weight.*new Trainer"):
        trainer.train()


def test_model_init(tmp_path):
    """A new model for every training; the engine follows."""
    results = []
    for package, extra in ((transformers, {}), (openmind_compat, PYNATIVE)):
        args = package.TrainingArguments(output_dir=str(tmp_path), max_steps=3, **tiny.DEFAULTS, **extra)
        trainer = package.Trainer(model_init=lambda: tiny.bag()[0], args=args, train_dataset=ROWS)
        logs = tiny.record(trainer)
        trainer.train()
        trainer.train()
        results += [trainer, logs]
    reference, reference_logs, trainer, logs = results
    tiny.assert_same_run(reference_logs, logs)
    assert logs.loss[:3] == logs.loss[3:]
    tiny.assert_same_weights(reference.model, trainer.model)
