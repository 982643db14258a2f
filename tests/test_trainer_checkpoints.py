"""Checkpoints of the Trainer on MindSpore: transformers' files, readable by torch, and resumed on either engine."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tiny
import torch
import transformers

import openmind_compat

BAG, ROWS = tiny.bag()
ENGINES = {
    "torch": (transformers.Trainer, transformers.TrainingArguments, {}),
    "mindspore": (openmind_compat.Trainer, openmind_compat.TrainingArguments, {"mode": tiny.PYNATIVE}),
}
# Two epochs of 5 steps of 2 micro-batches: step 3 lies in the middle of an epoch, and 8 too.
RUN = dict(
    num_train_epochs=2,
    gradient_accumulation_steps=2,
    save_strategy="steps",
    save_steps=3,
    warmup_steps=2,
    weight_decay=0.01,
    lr_scheduler_type="cosine",
)
TRAIN = ROWS[:40]


def train(engine, out, model, rows=TRAIN, resume=None, trainer=None, **options):
    trainer_cls, args_cls, extra = ENGINES[engine]
    options = {**RUN, **extra, **options}
    return tiny.run(
        trainer_cls,
        args_cls,
        copy.deepcopy(model),
        rows,
        resume=resume,
        trainer=trainer,
        output_dir=str(out),
        **options,
    )


@pytest.fixture(scope="module")
def bert_runs(tmp_path_factory):
    """The same training on both engines, by the one's name: folder, Trainer, logs."""
    model, rows = tiny.bert_seq()
    runs = {}
    for engine in ENGINES:
        out = tmp_path_factory.mktemp(engine)
        runs[engine] = (out, *train(engine, out, model, rows[:40]))
    return runs


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


# -- files -----------------------------------------------------------------------------------------------------------


def test_same_files(bert_runs):
    names = {engine: files(out) for engine, (out, *_) in bert_runs.items()}
    assert names["mindspore"] == names["torch"]
    assert "checkpoint-3/model.safetensors" in names["mindspore"]


def test_state_is_the_same_but_for_rounding(bert_runs):
    states = [json.loads((out / "checkpoint-6" / "trainer_state.json").read_text()) for out, *_ in bert_runs.values()]
    assert states[0].keys() == states[1].keys()
    for name in ("global_step", "epoch", "max_steps", "total_flos", "train_batch_size", "stateful_callbacks"):
        assert states[0][name] == states[1][name]


def test_torch_loads_the_model(bert_runs):
    _, rows = tiny.bert_seq()
    batch = {name: torch.stack([row[name] for row in rows[:4]]) for name in rows[0]}
    for step in (3, 6):
        logits = []
        for out, *_ in bert_runs.values():
            model = transformers.AutoModelForSequenceClassification.from_pretrained(out / f"checkpoint-{step}")
            logits.append(model.eval()(**batch).logits)
        torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_checkpoint_has_the_weights_of_its_step(bert_runs):
    out, trainer, _ = bert_runs["mindspore"]
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    last = trainer.state.global_step
    trainer.save_model(str(out / "now"))
    now = load(out / "now")
    assert tiny.weight_difference(now, trainer.model)[0] == 0
    assert tiny.weight_difference(load(out / "checkpoint-6"), now)[0] > 0
    assert last == 10


def test_torch_loads_optimizer_and_schedule(bert_runs):
    states = {}
    for engine, (out, trainer, _) in bert_runs.items():
        folder = out / "checkpoint-6"
        names = transformers.trainer_pt_utils.get_parameter_names(trainer.model, [torch.nn.LayerNorm], ["bias"])
        parameters = dict(trainer.model.named_parameters())
        groups = [
            {"params": [p for name, p in parameters.items() if name in names]},
            {"params": [p for name, p in parameters.items() if name not in names]},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        saved = torch.load(folder / "optimizer.pt", weights_only=True)
        optimizer.load_state_dict(saved)
        scheduler.load_state_dict(torch.load(folder / "scheduler.pt", weights_only=True))
        states[engine] = saved, scheduler.state_dict()
    (a, a_schedule), (b, b_schedule) = states.values()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for index, expected in a["state"].items():
        got = b["state"][index]
        assert expected.keys() == got.keys()
        for name, value in expected.items():
            assert value.dtype == got[name].dtype and value.shape == got[name].shape
            torch.testing.assert_close(value, got[name], atol=1e-5, rtol=1e-3)
    for schedule in (a_schedule, b_schedule):
        schedule.pop("lr_lambdas")
    assert a_schedule == b_schedule


def test_optimizer_takes_its_own_state_back(tmp_path):
    """On the CPU the state that it gives out is the memory that it then writes to."""
    trainer, _ = train("mindspore", tmp_path, BAG, save_strategy="no", max_steps=2)
    before = copy.deepcopy(trainer.optimizer.state_dict())
    trainer.optimizer.load_state_dict(trainer.optimizer.state_dict())
    after = trainer.optimizer.state_dict()
    for index, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(value, after["state"][index][name]) and value.abs().sum() > 0


def test_save_only_model_and_limit(tmp_path):
    names = []
    for engine in ENGINES:
        out = tmp_path / engine
        train(engine, out, BAG, save_only_model=True, save_total_limit=1, save_steps=2, max_steps=6)
        names.append(files(out))
    assert names[0] == names[1]
    assert {name.split("/")[0] for name in names[1]} == {"checkpoint-6"}
    assert not any("optimizer" in name for name in names[1])


# -- resume ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bag_runs(tmp_path_factory):
    runs = {}
    for engine in ENGINES:
        out = tmp_path_factory.mktemp(engine)
        runs[engine] = (out, *train(engine, out, BAG))
    return runs


@pytest.mark.parametrize("step", [3, 6, 10])
@pytest.mark.parametrize(
    ("before", "after"), [("mindspore", "mindspore"), ("torch", "mindspore"), ("mindspore", "torch")]
)
def test_resume(bag_runs, before, after, step, tmp_path):
    """Losses and weights of the rest are those of a run that was not interrupted."""
    checkpoint = bag_runs[before][0] / f"checkpoint-{step}"
    _, uninterrupted, expected = bag_runs["torch"]
    trainer, logs = train(after, tmp_path, tiny.bag(classes=3)[0], resume=str(checkpoint))
    assert tiny.relative(expected.loss[step:], logs.loss) < 1e-5
    assert expected.lr[step:] == logs.lr
    tiny.assert_same_weights(uninterrupted.model, trainer.model, 1e-5)
    assert trainer.state.global_step == 10


def test_resume_on_mindspore_is_exact(bag_runs, tmp_path):
    out, uninterrupted, expected = bag_runs["mindspore"]
    trainer, logs = train("mindspore", tmp_path, BAG, resume=str(out / "checkpoint-3"))
    assert logs.loss == expected.loss[3:]
    assert tiny.weight_difference(uninterrupted.model, trainer.model)[0] == 0


def test_resume_with_own_optimizer_and_scheduler(tmp_path):
    def own(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
        return {"optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step))}

    losses = {}
    for engine, (trainer_cls, args_cls, extra) in ENGINES.items():
        options = {**RUN, **extra, "output_dir": str(tmp_path / engine)}
        for resume in (None, str(tmp_path / engine / "checkpoint-3")):
            model = copy.deepcopy(BAG)
            _, logs = tiny.run(trainer_cls, args_cls, model, TRAIN, resume=resume, trainer=own(model), **options)
            losses[engine, resume is None] = logs
    for engine in ENGINES:
        assert tiny.relative(losses[engine, True].loss[3:], losses[engine, False].loss) < 1e-5
        assert losses[engine, True].lr[3:] == losses[engine, False].lr
    tiny.assert_same_run(losses["torch", True], losses["mindspore", True])


def test_resume_finds_the_last_checkpoint(bag_runs, tmp_path):
    import shutil

    out = tmp_path / "run"
    shutil.copytree(bag_runs["mindspore"][0] / "checkpoint-6", out / "checkpoint-6")
    _, logs = train("mindspore", out, BAG, resume=True)
    assert tiny.relative(bag_runs["mindspore"][2].loss[6:], logs.loss) < 1e-6


def test_checkpoint_of_another_model_is_refused(bag_runs, tmp_path):
    other = tiny.bag(classes=5)[0]
    with pytest.raises(Exception, match="(?i)size mismatch|shape"):
        train("mindspore", tmp_path, other, resume=str(bag_runs["mindspore"][0] / "checkpoint-3"))


KILLED = """
    import copy, json, os, signal, sys
    sys.path.insert(0, {tests!r})
    import tiny, transformers
    import openmind_compat

    class Kill(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == {kill_at}:
                os.kill(os.getpid(), signal.SIGKILL)

    model, rows = tiny.bag()
    resume = os.path.isdir({out!r})
    trainer = tiny.make(
        openmind_compat.Trainer, openmind_compat.TrainingArguments, model, rows[:40], output_dir={out!r}, mode=0,
        trainer={{"callbacks": [] if resume else [Kill()]}}, **{options!r},
    )
    logs = tiny.record(trainer)
    trainer.train(resume_from_checkpoint=resume)
    print(json.dumps(logs.loss))
"""


def python(source, *, cwd, timeout=240):
    """Run a program in a process of its own, with the sources of this checkout, as a user would."""
    root = str(Path(openmind_compat.__file__).parent.parent)
    about_logs = ("GLOG_", "OPENMIND_", "MS_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(about_logs)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_killed_and_resumed(bag_runs, tmp_path):
    """The process gets no chance to tidy up, seven steps in; a new one goes on from the checkpoint of step 6."""
    source = KILLED.format(tests=str(Path(__file__).parent), out=str(tmp_path / "out"), kill_at=7, options=RUN)
    killed = python(source, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert (tmp_path / "out" / "checkpoint-6").is_dir()
    resumed = python(source, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    losses = json.loads(resumed.stdout.splitlines()[-1])
    assert tiny.relative(bag_runs["torch"][2].loss[6:], losses) < 1e-5


# -- processes -------------------------------------------------------------------------------------------------------

QUIET = """
    import sys
    sys.path.insert(0, {tests!r})
    import tiny
    from openmind_compat import Trainer, TrainingArguments

    if __name__ == "__main__":
        model, rows = tiny.bert_seq()
        trainer = tiny.make(
            Trainer, TrainingArguments, model, rows[:16], rows[:8], output_dir="out", max_steps=6, disable_tqdm=False,
            eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=6, mode={mode},
            dataloader_num_workers={workers},
        )
        trainer.train()
        print("loss", trainer.state.log_history[0]["loss"])
"""


@pytest.fixture(scope="module")
def first_loss():
    model, rows = tiny.bert_seq()
    trainer_cls, args_cls, _ = ENGINES["torch"]
    trainer, _ = tiny.run(trainer_cls, args_cls, model, rows[:16], max_steps=6)
    return trainer.state.log_history[0]["loss"]


@pytest.mark.parametrize(("mode", "workers"), [(tiny.GRAPH, 2), (tiny.PYNATIVE, 0)])
def test_quiet_and_tidy(mode, workers, first_loss, tmp_path):
    """The terminal shows transformers' bar and logs; the folder holds the checkpoints and nothing else.

    The workers are forked from a process in which MindSpore has threads: they must not hang.
    """
    source = QUIET.format(tests=str(Path(__file__).parent), mode=mode, workers=workers)
    done = python(source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert os.listdir(tmp_path) == ["out"]
    lines = re.sub("\x1b\\[[A-Z]", "", done.stderr).replace("\r", "\n").splitlines()
    assert [line for line in lines if line.strip() and not re.search(r"\d+%\|.*(it/s|s/it)", line)] == []
    assert all(line.startswith(("{", "loss")) for line in done.stdout.splitlines() if line.strip())
    assert float(done.stdout.split()[-1]) == pytest.approx(first_loss, abs=2e-4)
