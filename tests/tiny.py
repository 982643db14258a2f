"""Models small enough to train in a second, data to train them on, and what compares two runs."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY, WIDTH, LENGTH, EXAMPLES = 99, 32, 12, 48
HEADS, LAYERS = 4, 1
GRAPH, PYNATIVE = 0, 1

Model = torch.nn.Module
Row = dict[str, Any]

_TEXT = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=2 * WIDTH,
    max_position_embeddings=64,
)
_NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


# -- data ------------------------------------------------------------------------------------------------------------


def text_rows(labels: str, n: int = EXAMPLES, length: int = LENGTH, seed: int = 11) -> list[Row]:
    """Sequences of different lengths, padded to one; the rows are different enough for the order to matter.

    ``labels``: "class" (one of two), "tokens" (the input itself), "masked" (a third of the input, the rest -100),
    "tags" (one of three for each token) or "none". Padding is -100 in every one of them.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        used = int(torch.randint(length // 2, length + 1, (), generator=generator))
        ids = torch.randint(1, VOCABULARY, (length,), generator=generator)
        mask = (torch.arange(length) < used).long()
        ids = ids * mask
        chosen = torch.rand(length, generator=generator) < 0.35
        chosen[0] = True
        tags = torch.randint(0, 3, (length,), generator=generator)
        row = {"input_ids": ids, "attention_mask": mask}
        if labels == "class":
            row["labels"] = (ids.sum() % 2).long()
        elif labels == "tokens":
            row["labels"] = ids.masked_fill(mask == 0, -100)
        elif labels == "masked":
            row["labels"] = ids.masked_fill((mask == 0) | ~chosen, -100)
            row["input_ids"] = torch.where((mask == 1) & chosen, torch.tensor(3), ids)
        elif labels == "tags":
            row["labels"] = tags.masked_fill(mask == 0, -100)
        rows.append(row)
    return rows


def image_rows(n: int = EXAMPLES, seed: int = 11) -> list[Row]:
    """Images of 3 by 8 by 8 and one of two classes."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 8, 8, generator=generator)
    return [{"pixel_values": image, "labels": (image.mean() > 0).long()} for image in images]


# -- models ----------------------------------------------------------------------------------------------------------


def _seeded(make: Callable[[], Model]) -> Model:
    """The same weights whenever it is asked for, and the caller's random numbers left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return make()


def bert_config(**changes: Any) -> transformers.BertConfig:
    return transformers.BertConfig(**{**_TEXT, **_NO_DROPOUT, **changes})


def bert_seq(**changes: Any) -> tuple[Model, list[Row]]:
    return _seeded(lambda: transformers.BertForSequenceClassification(bert_config(**changes))), text_rows("class")


def bert_mlm(**changes: Any) -> tuple[Model, list[Row]]:
    return _seeded(lambda: transformers.BertForMaskedLM(bert_config(**changes))), text_rows("masked")


def bert_token(**changes: Any) -> tuple[Model, list[Row]]:
    config = bert_config(num_labels=3, **changes)
    return _seeded(lambda: transformers.BertForTokenClassification(config)), text_rows("tags")


def gpt2(**changes: Any) -> tuple[Model, list[Row]]:
    config = dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)
    no_dropout = dict(resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)
    tokens = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config = transformers.GPT2Config(**{**config, **no_dropout, **tokens, **changes})
    return _seeded(lambda: transformers.GPT2LMHeadModel(config)), text_rows("tokens")


def llama(**changes: Any) -> tuple[Model, list[Row]]:
    config = transformers.LlamaConfig(**{**_TEXT, "num_key_value_heads": 2, **changes})
    return _seeded(lambda: transformers.LlamaForCausalLM(config)), text_rows("tokens")


def qwen2(**changes: Any) -> tuple[Model, list[Row]]:
    config = transformers.Qwen2Config(**{**_TEXT, "num_key_value_heads": 2, **changes})
    return _seeded(lambda: transformers.Qwen2ForCausalLM(config)), text_rows("tokens")


def t5(**changes: Any) -> tuple[Model, list[Row]]:
    config = dict(vocab_size=VOCABULARY, d_model=WIDTH, d_ff=2 * WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS)
    rest = dict(num_layers=LAYERS, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    config = transformers.T5Config(**{**config, **rest, **changes})
    rows = text_rows("tokens")
    for row in rows:  # a target that is shorter than its source
        row["labels"] = row["labels"][: LENGTH - 3]
    return _seeded(lambda: transformers.T5ForConditionalGeneration(config)), rows


def vit(**changes: Any) -> tuple[Model, list[Row]]:
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=2 * WIDTH)
    config = transformers.ViTConfig(**{**_NO_DROPOUT, **sizes, "image_size": 8, "patch_size": 4, **changes})
    return _seeded(lambda: transformers.ViTForImageClassification(config)), image_rows()


class Bag(torch.nn.Module):
    """A classifier without a config, as a script may write one: mean of embeddings, two layers.

    Cheap enough that a test can train many of them. ``outputs`` is "dict" or "tuple".
    """

    def __init__(self, classes: int = 3, dropout: float = 0.0, outputs: str = "dict", norm: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(WIDTH, classes)
        self.outputs = outputs

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1).float()
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        hidden = self.dropout(torch.relu(self.norm(self.hidden(mean))))
        logits = self.head(hidden)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        if self.outputs == "tuple":
            return (logits, hidden) if loss is None else (loss, logits, hidden)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


def bag(**options: Any) -> tuple[Model, list[Row]]:
    return _seeded(lambda: Bag(**options)), text_rows("class")


FAMILIES: dict[str, Callable[..., tuple[Model, list[Row]]]] = {
    "bert-seq": bert_seq,
    "bert-mlm": bert_mlm,
    "bert-token": bert_token,
    "gpt2": gpt2,
    "llama": llama,
    "qwen2": qwen2,
    "t5": t5,
    "vit": vit,
}


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass
class Logs:
    """What a run reported, as exact as it was computed: transformers rounds the loss that it logs.

    ``micro`` has the value of every ``training_step`` (a micro-batch's share of the loss), ``loss`` their sum by
    optimizer step, ``grad_norm`` and ``lr`` one entry a logged step, ``evals`` the metrics of every evaluation, and
    ``history`` is ``state.log_history``.
    """

    micro: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    grad_norm: list[float | None] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    evals: list[dict[str, float]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)


class Recorder(transformers.TrainerCallback):
    """Fills a run's Logs."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logs.loss.append(sum(self.logs.micro[self._summed :]))
        self._summed = len(self.logs.micro)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.logs.grad_norm.append(logs.get("grad_norm"))
            self.logs.lr.append(logs["learning_rate"])

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.logs.evals.append(dict(metrics))

    _summed = 0


def record(trainer: transformers.Trainer) -> Logs:
    """Have a Trainer's runs recorded from now on."""
    logs = Logs()
    step = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = step(*args, **kwargs)
        logs.micro.append(float(loss))
        return loss

    trainer.training_step = training_step
    trainer.add_callback(Recorder(logs))
    return logs


_SCRATCH = tempfile.TemporaryDirectory(prefix="openmind_compat-tests-")  # removed when the process ends

DEFAULTS = dict(
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    learning_rate=1e-3,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    save_strategy="no",
    use_cpu=True,
    seed=7,
)


def make(
    trainer_cls: type,
    args_cls: type,
    model: Model,
    train: Any = None,
    eval: Any = None,  # noqa: A002 - as in eval_dataset
    trainer: dict[str, Any] | None = None,
    **args: Any,
) -> transformers.Trainer:
    """A Trainer with the defaults of these tests. ``trainer`` holds arguments of the Trainer itself."""
    if "output_dir" not in args:
        args["output_dir"] = tempfile.mkdtemp(dir=_SCRATCH.name)
    values = {**DEFAULTS, **({"framework": "ms"} if _is_ours(args_cls) else {}), **args}
    return trainer_cls(model=model, args=args_cls(**values), train_dataset=train, eval_dataset=eval, **(trainer or {}))


def _is_ours(args_cls: type) -> bool:
    return any(base.__module__.startswith("openmind_compat") for base in args_cls.__mro__)


def run(
    trainer_cls: type,
    args_cls: type,
    model: Model,
    train: Any,
    eval: Any = None,  # noqa: A002 - as in eval_dataset
    resume: Any = None,
    **args: Any,
) -> tuple[transformers.Trainer, Logs]:
    """Train, and return the Trainer and what it reported. ``mode=`` and the rest go into the arguments."""
    args = {key: value for key, value in args.items() if key not in ("framework", "mode") or _is_ours(args_cls)}
    trainer = make(trainer_cls, args_cls, model, train, eval, **args)
    logs = record(trainer)
    trainer.train(resume_from_checkpoint=resume)
    logs.history = [dict(entry) for entry in trainer.state.log_history]
    return trainer, logs


@dataclass
class Pair:
    """The same training on torch, by transformers, and on MindSpore."""

    reference: transformers.Trainer
    reference_logs: Logs
    ours: transformers.Trainer
    logs: Logs


def run_both(
    model: Model,
    train: Any,
    eval: Any = None,  # noqa: A002 - as in eval_dataset
    *,
    mode: int = PYNATIVE,
    subclass: Callable[[type], type] = lambda base: base,
    trainer: Callable[[Model], dict[str, Any]] = lambda model: {},
    seq2seq: bool = False,
    **args: Any,
) -> Pair:
    """Train two copies of a model. ``model`` itself is left as it is.

    ``subclass`` makes a script's own class of either Trainer; ``trainer`` the arguments of one, for its model.
    """
    import openmind_compat

    kind = "Seq2Seq" if seq2seq else ""
    results = []
    for package in (transformers, openmind_compat):
        copied = copy.deepcopy(model)
        trainer_cls = subclass(getattr(package, f"{kind}Trainer"))
        args_cls = getattr(package, f"{kind}TrainingArguments")
        results += run(trainer_cls, args_cls, copied, train, eval, trainer=trainer(copied), mode=mode, **args)
    return Pair(*results)


def assert_same_pair(pair: Pair, *, weights: float = 1e-4, **bounds: float) -> None:
    """The same losses, gradient norms, learning rates, metrics and weights."""
    assert_same_run(pair.reference_logs, pair.logs, **bounds)
    assert_same_weights(pair.reference.model, pair.ours.model, weights)


# -- comparison ------------------------------------------------------------------------------------------------------


def relative(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest difference of two equally long lists, relative to the first."""
    assert len(a) == len(b), f"{len(a)} values against {len(b)}"
    return max((abs(x - y) / max(abs(x), 1e-8) for x, y in zip(a, b)), default=0.0)


def weight_difference(a: Model, b: Model) -> tuple[float, str]:
    """The largest absolute difference of two models' states, and where it is."""
    first, second = a.state_dict(), b.state_dict()
    assert list(first) == list(second)
    differences = [((x.double() - second[name].double()).abs().max().item(), name) for name, x in first.items()]
    assert not any(math.isnan(value) for value, _ in differences), "a weight is not a number"
    return max(differences)


def assert_same_run(
    reference: Logs, ours: Logs, *, loss: float = 1e-4, grad_norm: float = 1e-3, evals: float = 1e-4
) -> None:
    """Losses, gradient norms and metrics within relative bounds; learning rates equal."""
    assert reference.loss, "the reference run took no step"
    assert relative(reference.loss, ours.loss) < loss
    assert reference.lr == ours.lr
    with_norm = [value is not None for value in reference.grad_norm]
    assert with_norm == [value is not None for value in ours.grad_norm]
    both = [(a, b) for a, b in zip(reference.grad_norm, ours.grad_norm) if a is not None]
    assert relative([a for a, _ in both], [b for _, b in both]) < grad_norm
    assert len(reference.evals) == len(ours.evals)
    for a, b in zip(reference.evals, ours.evals):
        assert_same_metrics(a, b, evals)


TIMING = ("runtime", "per_second", "preparation_time")


def assert_same_metrics(reference: dict[str, float], ours: dict[str, float], bound: float = 1e-4) -> None:
    """The same metrics with the same values, but for those of time."""
    assert reference.keys() == ours.keys()
    for name, value in reference.items():
        if not any(word in name for word in TIMING):
            assert abs(value - ours[name]) <= bound * max(1.0, abs(value)), (name, value, ours[name])


def assert_same_weights(a: Model, b: Model, bound: float = 1e-4) -> None:
    difference, name = weight_difference(a, b)
    assert difference < bound, f"{name} differs by {difference:.1e}"
