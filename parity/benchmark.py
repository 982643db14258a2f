"""How fast is a step on MindSpore, and what does the Trainer around it cost?

    python -m parity.benchmark [--model llama|bert|both] [--json FILE]

Three ways to train the same model on the same batches take turns, in one process and in chunks of `--steps` steps:

* trainer: `openmind_compat.Trainer` on MindSpore, GRAPH mode;
* bare: a plain Python loop that calls that Trainer's compiled step again and again, with nothing of the Trainer;
* torch: `transformers.Trainer` on PyTorch.

Taking turns matters more than anything else here: a machine's speed drifts, and the three see the same drift. A ratio
is made from two chunks of one round, and the median over the rounds is reported with its range.

The time of a step is that from the end of the step before to its own end, so for a Trainer it holds the data loader,
the collator, the callbacks, clipping, the optimizer and the schedule. The first step of a chunk is left out.

It is a measurement and not a test: it has no opinion about the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

# torch, transformers and openmind_compat are imported inside the functions, after `limit_threads`: thread pools take
# their size when they are loaded.

VOCABULARY = 4096
MODELS = ("llama", "bert")


# --------------------------------------------------------------------------------------------------------------------
# What depends on the engine's interface: these two functions and nothing else.


def bare_step(trainer: Any, batch: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that runs one whole step (forward, backward, clipping, update) with nothing of the Trainer.

    `trainer` has trained some steps on batches of this shape, so the step is compiled. `batch` is what the collator
    returned, torch tensors on the CPU. The function must not return before the device has finished.
    """
    import mindspore

    engine = trainer.engine
    known = engine.timings.graphs
    num_items = trainer._get_num_items_in_batch([batch], None)
    inputs, leaf = trainer._loss_leaf(trainer._model, batch, num_items)
    graph, tensors = engine._prepare("the loss", leaf, inputs, training=True, key=(), watch=trainer)
    if engine.timings.graphs != known:
        raise RuntimeError("the bare loop would run another graph than the Trainer does")
    (norm_phase,) = engine._norms.values()
    update = list(engine._updates.values())[-1]
    max_norm = trainer.args.max_grad_norm
    one = mindspore.Tensor(1.0, mindspore.float32)
    smallest = min(update.optimizer.parameters, key=lambda parameter: parameter.size)
    # The hyper-parameters of one step, repeated: the values do not change how long it takes.
    numbers = [[number.parameter.asnumpy().item() for number in bucket] for bucket in update.optimizer.numbers]

    def step() -> None:
        _, gradients = graph.run(*tensors, one)
        norm = norm_phase(*gradients).asnumpy().item()
        update.optimizer.set_numbers(min(1.0, max_norm / (norm + 1e-6)), numbers)
        update.phase(*(gradients[i] for i in update.gradient_order))
        # Reading waits for the graph that writes it; `runtime.synchronize` does not know the CPU.
        smallest.asnumpy()

    return step


def preparation_seconds(trainer: Any) -> dict[str, float]:
    """Return what the engine says it spent before the first step, in seconds by phase: capture, translate, compile."""
    timings = trainer.engine.timings
    return {"capture": timings.capture, "translate": timings.translate, "compile": timings.compile}


# --------------------------------------------------------------------------------------------------------------------


def limit_threads(count: int) -> None:
    """Give both engines `count` threads. Must run before either is imported.

    MindSpore does not take its number of threads from one place, so the process is also confined to `count` cores.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(count)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def make_model(name: str, options: argparse.Namespace) -> Any:
    import transformers

    transformers.set_seed(42)
    heads = max(1, options.width // 64)
    if name == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=options.width,
                intermediate_size=options.width * 8 // 3 // 16 * 16,
                num_hidden_layers=options.layers,
                num_attention_heads=heads,
                max_position_embeddings=options.length,
                use_cache=False,
            )
        )
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=options.width,
            intermediate_size=options.width * 4,
            num_hidden_layers=options.layers,
            num_attention_heads=heads,
            max_position_embeddings=options.length,
            # The two engines draw different random numbers at different cost; this is about the rest.
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def make_dataset(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    size = (options.batch * 16, options.length)
    ids = torch.randint(0, VOCABULARY, size, generator=generator)
    mask = torch.ones(options.length, dtype=torch.long)
    return [{"input_ids": row, "attention_mask": mask, "labels": row} for row in ids]


class StepTimer:
    """Mixed into a TrainerCallback: keeps the time of each step's end."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.ends: list[float] = []

    def durations(self) -> list[float]:
        """Of every step but the first, which has no step before it."""
        return [end - start for start, end in itertools.pairwise(self.ends)]


def training_arguments(folder: str, steps: int, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """All that matters is set here, so that no difference between two sets of defaults enters the comparison."""
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": options.batch,
        "dataloader_drop_last": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "optim": "adamw_torch",
        "learning_rate": 1e-4,
        "lr_scheduler_type": "linear",
        "warmup_ratio": 0.0,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "logging_steps": options.steps,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 42,
        **more,
    }


def make_trainer(kind: str, name: str, steps: int, folder: str, options: argparse.Namespace) -> Any:
    """A trainer on MindSpore ("ms") or transformers' own on torch ("pt")."""
    import transformers

    import openmind_compat

    class QuietTrainer(openmind_compat.Trainer if kind == "ms" else transformers.Trainer):
        """Logs, as any run does, but without printing."""

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            self.state.log_history.append({**logs, "step": self.state.global_step})

    if kind == "ms":
        arguments = openmind_compat.TrainingArguments(
            **training_arguments(folder, steps, options, framework="ms", mode=0)
        )
    else:
        arguments = transformers.TrainingArguments(**training_arguments(folder, steps, options, use_cpu=True))
    trainer = QuietTrainer(model=make_model(name, options), args=arguments, train_dataset=make_dataset(options))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def torch_chunk(name: str, folder: str, options: argparse.Namespace) -> Callable[[int], list[float]]:
    """Return a function that trains some steps by transformers' Trainer on torch and returns their durations."""
    import transformers

    class Timer(StepTimer, transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.ends.append(time.perf_counter())

    model_steps: list[Any] = []

    def run(steps: int) -> list[float]:
        if not model_steps:
            model_steps.append(make_trainer("pt", name, steps, folder, options))
        trainer = model_steps[0]
        timer = Timer()
        trainer.add_callback(timer)
        # The same model and optimizer go on; torch has nothing to compile, so a new call costs its steps nothing.
        trainer.args.max_steps = steps
        trainer.train()
        trainer.remove_callback(timer)
        return timer.durations()

    return run


def bare_chunk(step: Callable[[], Any], steps: int) -> list[float]:
    ends = []
    for _ in range(steps):
        step()
        ends.append(time.perf_counter())
    return [end - start for start, end in itertools.pairwise(ends)]


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds for one model and return the durations of each way, a list of chunks each."""
    import transformers

    chunks: dict[str, list[list[float]]] = {"trainer": [], "bare": [], "torch": []}
    notes: list[str] = []

    with tempfile.TemporaryDirectory(prefix="openmind-benchmark-") as folder:
        run_torch = torch_chunk(name, os.path.join(folder, "pt"), options)

        class Conductor(StepTimer, transformers.TrainerCallback):
            """Lets the MindSpore Trainer run a chunk, then, between two of its steps, the other two ways theirs."""

            trainer: Any = None
            first_step = 0.0

            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                self.started = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.ends.append(time.perf_counter())
                if state.global_step == 1:
                    self.first_step = self.ends[0] - self.started
                if state.global_step == options.warmup:
                    # Warm up the others too, and drop what was measured so far.
                    run_torch(options.warmup)
                    self.step = self.make_bare_step()
                    if self.step:
                        bare_chunk(self.step, options.warmup)
                    self.ends = []
                elif state.global_step > options.warmup and len(self.ends) == options.steps:
                    chunks["trainer"].append(self.durations())
                    if self.step:
                        chunks["bare"].append(bare_chunk(self.step, options.steps))
                    chunks["torch"].append(run_torch(options.steps))
                    self.ends = []
                    report_progress(name, len(chunks["trainer"]), options.rounds)

            def make_bare_step(self) -> Optional[Callable[[], Any]]:
                batch = next(iter(self.trainer.get_train_dataloader()))
                try:
                    return bare_step(self.trainer, dict(batch))
                except NotImplementedError as error:
                    notes.append(str(error))
                    return None

        conductor = Conductor()
        total = options.warmup + options.rounds * options.steps
        trainer = make_trainer("ms", name, total, os.path.join(folder, "ms"), options)
        conductor.trainer = trainer
        trainer.add_callback(conductor)
        trainer.train()
        phases = preparation_seconds(trainer)

    typical = statistics.median(sum(chunks["trainer"], []))
    return {
        "model": name,
        "chunks": chunks,
        "step_ms": {way: statistics.median(sum(parts, [])) * 1000 for way, parts in chunks.items() if parts},
        "ratios": {
            title: ratio(chunks[over], chunks[under])
            for title, over, under in (
                ("trainer / bare", "trainer", "bare"),
                ("trainer / torch", "trainer", "torch"),
                ("bare / torch", "bare", "torch"),
            )
            if chunks[over] and chunks[under]
        },
        "preparation_s": {**phases, "first step, beyond a usual one": conductor.first_step - typical},
        "notes": notes,
    }


def ratio(over: list[list[float]], under: list[list[float]]) -> dict[str, float]:
    """Median over the rounds of the ratio of the chunks' median steps, and its range."""
    values = [statistics.median(a) / statistics.median(b) for a, b in zip(over, under, strict=True)]
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def report_progress(name: str, done: int, rounds: int) -> None:
    print(f"{name}: round {done} of {rounds}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------------------------
# Memory: a process's peak cannot be divided between two engines, so each gets a process of its own.


def peak_mib() -> float:
    """The most memory that this process has had resident so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux its figure starts with the peak of the process that started this one.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if platform.system() == "Darwin" else peak / 1024


def print_memory(kind: str, name: str, options: argparse.Namespace) -> None:
    """The child's part: train a few steps on one engine and print the peak, before and after, as JSON."""
    import transformers  # noqa: F401
    from transformers import Trainer  # noqa: F401  loads torch, which either way needs

    if kind == "ms":
        import openmind_compat

        _ = openmind_compat.Trainer
    with tempfile.TemporaryDirectory(prefix="openmind-benchmark-") as folder:
        trainer = make_trainer(kind, name, 5, folder, options)
        before = peak_mib()
        trainer.train()
    print(json.dumps({"before_training": before, "peak": peak_mib()}))


def measure_memory(kind: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "parity.benchmark", "--memory-of", kind, "--model", name]
    for option in ("layers", "width", "batch", "length", "threads"):
        command += [f"--{option}", str(getattr(options, option))]
    environment = dict(os.environ)
    # The child must find `parity`, which is not installed.
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


# --------------------------------------------------------------------------------------------------------------------


def print_report(result: dict[str, Any]) -> None:
    print(f"\n{result['model']}")
    for way, value in result["step_ms"].items():
        print(f"  {way + ' step':<34}{value:8.1f} ms")
    for title, values in result["ratios"].items():
        print(f"  {title:<34}{values['median']:8.3f}     ({values['lowest']:.3f} to {values['highest']:.3f})")
    for title, seconds in result["preparation_s"].items():
        print(f"  {title:<34}{seconds:8.2f} s")
    for kind, values in result.get("memory_mib", {}).items():
        title = f"peak memory, {'MindSpore' if kind == 'ms' else 'torch'}"
        print(f"  {title:<34}{values['peak']:8.0f} MiB   ({values['before_training']:.0f} before training)")
    for note in result["notes"]:
        print(f"  note: {note}")


def library_versions() -> Iterator[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    for name in ("torch", "transformers", "mindspore"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parity.benchmark", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=(*MODELS, "both"), default="both")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="steps of a chunk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=5, help="steps of each way before the first round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="leave out the two processes that measure memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, every step's too, to FILE")
    parser.add_argument("--memory-of", choices=("ms", "pt"), help=argparse.SUPPRESS)
    return parser


def main(argv: Optional[list[str]] = None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.steps < 2 or options.rounds < 1 or options.warmup < 1:
        parser.error("a chunk needs 2 steps or more; --rounds and --warmup 1 or more")
    limit_threads(options.threads)
    if options.memory_of:
        print_memory(options.memory_of, options.model, options)
        return 0

    versions = dict(library_versions())
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(
        f"{options.layers} layers, {options.width} wide, batch {options.batch}, length {options.length}, fp32, AdamW, "
        f"{options.threads} threads; load of the machine at the start {load:.1f}"
    )
    if load > 0.5:
        print(
            "Other programs are running, and the figures may be worth nothing: where a core is taken, torch's threads "
            "wait for each other actively, which can cost tens of times the step. OMP_WAIT_POLICY=passive avoids that."
        )

    results = []
    for name in MODELS if options.model == "both" else (options.model,):
        result = measure(name, options)
        if not options.no_memory:
            result["memory_mib"] = {kind: measure_memory(kind, name, options) for kind in ("ms", "pt")}
        print_report(result)
        results.append(result)
        if options.json:
            # After each model: what was measured is kept when the run is stopped.
            settings = {key: value for key, value in vars(options).items() if key not in ("json", "memory_of")}
            figures = {"versions": versions, "settings": settings, "load_at_start": load, "results": results}
            options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
