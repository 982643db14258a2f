"""Every entry of the operator table against torch: results, gradients and updated buffers, in both modes.

The cases are in operator_cases.py. In GRAPH mode those of one group are compiled as one graph.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

if importlib.util.find_spec("mindspore") is None:
    pytest.skip("needs mindspore", allow_module_level=True)

from operator_cases import CASES, Case  # noqa: E402

from openmind_compat.capture import CapturedGraph, CaptureError, capture, split_inputs  # noqa: E402
from openmind_compat.runtime import GRAPH, PYNATIVE, load_mindspore, set_up  # noqa: E402
from openmind_compat.translate import OPERATORS, GraphCell, MissingOperatorError, translate  # noqa: E402

ms = load_mindspore()
from openmind_compat.translate.cell import to_mindspore  # noqa: E402

aten = torch.ops.aten

# Entries that no case can show, each with the reason.
WITHOUT_CASE: dict[Any, str] = {
    aten.native_dropout.default: "random: test_dropout",
    aten.native_dropout_backward.default: "random: test_dropout",
    aten.bernoulli.p: "random: test_random_numbers",
    aten.rand.default: "random: test_random_numbers",
    aten.rand_like.default: "random: test_random_numbers",
    aten.randn_like.default: "random: test_random_numbers",
    aten.normal_functional.default: "random: test_random_numbers",
    torch.ops.prims.normal.default: "random: test_random_numbers",
    torch.ops.prims.uniform.default: "random: test_random_numbers",
}


@pytest.fixture(autouse=True)
def restored_mode() -> Iterator[None]:
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


class Model(torch.nn.Module):
    """A case's function with its parameters and buffers."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.function = case.function
        for i, tensor in enumerate(case.parameters):
            self.register_parameter(f"x{i}", torch.nn.Parameter(tensor.clone()))
        for i, tensor in enumerate(case.buffers):
            self.register_buffer(f"b{i}", tensor.clone())

    def forward(self, *data: torch.Tensor) -> list[torch.Tensor]:
        result = self.function(*self.parameters(), *self.buffers(), *data)
        return [result] if isinstance(result, torch.Tensor) else list(result)


def weights_for(results: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Weights of a loss that depends on every element of every result in a different way."""
    weights = []
    for i, result in enumerate(results):
        numbers = (torch.arange(result.numel()) * 0.618 + i * 0.3) % 1 + 0.5
        weights.append(numbers.reshape(result.shape) if result.is_floating_point() else None)
    return weights


def weighted_sum(results: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return sum((r * w).sum() for r, w in zip(results, weights) if w is not None)


@dataclass
class Job:
    """One translated graph of a case, its inputs, and what torch computes for them."""

    case: Case
    graph: GraphCell
    captured: CapturedGraph
    inputs: list[Any]
    expected: list[torch.Tensor]
    buffers: list[tuple[Any, torch.Tensor]]  # MindSpore Parameter, and its value afterwards
    is_training: bool

    def check(self, results: Sequence[Any]) -> None:
        kind = "gradient" if self.is_training else "result"
        tolerance = self.case.gradient if self.is_training else self.case.forward
        assert len(results) == len(self.expected)
        for i, (got, want) in enumerate(zip(results, self.expected)):
            assert_close(got, want, tolerance, f"{self.case} {kind} {i}")
        for i, (got, want) in enumerate(self.buffers):
            assert_close(got, want, self.case.forward, f"{self.case} buffer {i}")


def assert_close(got: Any, want: torch.Tensor, tolerance: float, what: str) -> None:
    got = torch.from_numpy(got.asnumpy().copy())
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, torch has {tuple(want.shape)}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, torch has {want.dtype}"
    if not want.is_floating_point():
        assert torch.equal(got, want), f"{what}:\n{got}\ntorch has\n{want}"
        return
    finite = want.isfinite()
    same = torch.equal(got.isfinite(), finite) and torch.equal(
        got[~finite].nan_to_num(nan=0.5), want[~finite].nan_to_num(nan=0.5)
    )
    assert same, f"{what}: not finite in other places\n{got}\ntorch has\n{want}"
    got, want = got[finite].double(), want[finite].double()
    if want.numel():
        error = (got - want).abs().max() / want.abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{what}: error {error:.1e}\n{got}\ntorch has\n{want}"


def jobs(case: Case) -> list[Job]:
    """The graph of a case's results and, where it has parameters, that of its gradients."""
    captured = [_job(case, training=False)]
    if case.parameters:
        captured.append(_job(case, training=True))
    used = {node.target for job in captured for node in job.captured.graph.nodes}
    absent = [str(overload) for overload in case.covers if overload not in used]
    assert not absent, f"{absent} do not appear in the graphs of {case}"
    return captured


@functools.cache
def _captured(case: Case, training: bool) -> tuple[CapturedGraph, list[torch.Tensor], list[torch.Tensor]]:
    """A graph of a case, torch's results for it, and torch's values of the buffers afterwards."""
    reference = Model(case)
    with torch.set_grad_enabled(training):
        results = reference(*case.data)
    weights = weights_for(results)
    model = Model(case)
    tensors, layout, _ = split_inputs(list(case.data))

    def leaf(data: Any) -> Any:
        results = model(*data)
        return weighted_sum(results, weights) if training else results

    graph = capture(leaf, model, tensors, layout, training=training, translated=OPERATORS, what=str(case))
    if training:
        wanted = [dict(reference.named_parameters())[name] for name in graph.gradients]
        loss = weighted_sum(results, weights)
        results = [loss, *torch.autograd.grad(loss, wanted)]
    return graph, [result.detach() for result in results], list(reference.buffers())


_NAMES = itertools.count()


def _job(case: Case, training: bool) -> Job:
    captured, expected, buffers = _captured(case, training)
    model = Model(case)
    parameters = {
        name: ms.Parameter(to_mindspore(value), name=f"{name}_{next(_NAMES)}")
        for name, value in itertools.chain(model.named_parameters(), model.named_buffers())
    }
    graph = translate(captured, parameters, {}, "CPU", str(case), rerun=lambda: None)
    inputs = [to_mindspore(tensor) for tensor in case.data]
    if training:
        inputs.append(ms.Tensor(1.0, ms.float32))
    changed = [(parameters[f"b{i}"], value) for i, value in enumerate(buffers)]
    return Job(case, graph, captured, inputs, expected, changed, training)


def run_alone(job: Job) -> None:
    job.check(job.graph.cell(*job.inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pynative(case: Case) -> None:
    set_up(PYNATIVE, "CPU")
    for job in jobs(case):
        run_alone(job)


class Together(ms.nn.Cell):
    """Several graphs as one. Their inputs are separate arguments: a tuple's tensors would be constants."""

    def __init__(self, members: Sequence[Job]) -> None:
        super().__init__(auto_prefix=False)
        self.graphs = ms.nn.CellList([job.graph.cell for job in members])
        self.starts = tuple(itertools.accumulate((len(job.inputs) for job in members), initial=0))

    def construct(self, *inputs):
        results = ()
        for i in range(len(self.graphs)):
            results = results + self.graphs[i](*inputs[self.starts[i] : self.starts[i + 1]])
        return results


@pytest.mark.parametrize("group", dict.fromkeys(case.group for case in CASES))
def test_graph(group: str) -> None:
    set_up(GRAPH, "CPU")
    members = [job for case in CASES if case.group == group for job in jobs(case)]
    results = iter(Together(members)(*(tensor for job in members for tensor in job.inputs)))
    failures = []
    for job in members:
        mine = list(itertools.islice(results, len(job.expected)))
        try:
            job.check(mine)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} of {len(members)}:\n" + "\n".join(failures)


def test_every_entry_has_a_case() -> None:
    covered = {overload for case in CASES for overload in case.covers}
    assert [str(entry) for entry in OPERATORS if entry not in covered and entry not in WITHOUT_CASE] == []
    assert [str(entry) for entry in WITHOUT_CASE if entry in covered or entry not in OPERATORS] == []


# -- random numbers ----------------------------------------------------------------------------------------------

both_modes = pytest.mark.parametrize("mode", [GRAPH, PYNATIVE], ids=["graph", "pynative"])


class Ones(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(100, 100))


def compiled(
    leaf: Any, module: torch.nn.Module, *data: torch.Tensor, training: bool = False, seed: int = 0
) -> GraphCell:
    tensors, layout, _ = split_inputs(list(data))
    captured = capture(
        lambda data: leaf(*data), module, tensors, layout, training=training, translated=OPERATORS, what="the test"
    )
    parameters = {n: ms.Parameter(to_mindspore(p), name=f"{n}_{next(_NAMES)}") for n, p in module.named_parameters()}
    return translate(captured, parameters, {}, "CPU", "the test", rerun=lambda: leaf(*data), seed=seed)


@both_modes
def test_dropout(mode: int) -> None:
    """Of ones, so that the gradient is the mask, scaled, and the loss its sum."""
    set_up(mode, "CPU")
    module = Ones()
    cell = compiled(lambda: torch.nn.functional.dropout(module.x, 0.3).sum(), module, training=True).cell
    one = ms.Tensor(1.0, ms.float32)
    masks = []
    for _ in range(2):
        loss, gradient = (result.asnumpy() for result in cell(one))
        kept = gradient != 0
        assert abs(kept.mean() - 0.7) < 0.02  # four standard deviations
        assert abs(gradient[kept] - 1 / 0.7).max() < 1e-6
        assert abs(loss - gradient.sum()) < 1e-3 * loss
        masks.append(kept)
    assert abs((masks[0] == masks[1]).mean() - (0.7**2 + 0.3**2)) < 0.02


@both_modes
def test_dropouts_are_independent(mode: int) -> None:
    set_up(mode, "CPU")
    module = Ones()
    F = torch.nn.functional
    first, second = compiled(lambda: (F.dropout(module.x, 0.5), F.dropout(module.x, 0.5)), module).cell()
    assert abs((first.asnumpy() == second.asnumpy()).mean() - 0.5) < 0.02


def test_dropout_depends_on_the_seed_alone() -> None:
    set_up(PYNATIVE, "CPU")
    module = Ones()
    masks = [
        compiled(lambda: torch.nn.functional.dropout(module.x, 0.5), module, seed=seed).cell()[0].asnumpy()
        for seed in (1, 1, 2)
    ]
    assert (masks[0] == masks[1]).all()
    assert abs((masks[0] == masks[2]).mean() - 0.5) < 0.02


def test_no_dropout_when_evaluating() -> None:
    module = Ones()
    source = compiled(lambda: torch.nn.functional.dropout(module.x, 0.5, training=False), module).source
    assert "Dropout" not in source


@both_modes
def test_random_numbers(mode: int) -> None:
    set_up(mode, "CPU")
    module = Ones()
    wanted = {  # mean and standard deviation
        aten.rand.default: (lambda: torch.rand(100, 100), 0.5, 12**-0.5),
        aten.rand_like.default: (lambda: torch.rand_like(module.x), 0.5, 12**-0.5),
        aten.randn_like.default: (lambda: torch.randn_like(module.x), 0.0, 1.0),
        torch.ops.prims.normal.default: (lambda: torch.randn(100, 100), 0.0, 1.0),
        aten.normal_functional.default: (lambda: torch.empty(100, 100).normal_(1.0, 2.0), 1.0, 2.0),
        torch.ops.prims.uniform.default: (lambda: torch.empty(100, 100).uniform_(-1.0, 2.0), 0.5, 3 * 12**-0.5),
        aten.bernoulli.p: (lambda: torch.empty(100, 100).bernoulli_(0.3), 0.3, 0.21**0.5),
    }
    graph = compiled(lambda: [draw() for draw, _, _ in wanted.values()], module)
    assert [str(op).removesuffix(".default") in graph.source for op in wanted] == [True] * len(wanted)
    runs = [[numbers.asnumpy() for numbers in graph.cell()] for _ in range(2)]
    for op, once, again in zip(wanted, *runs):
        _, mean, deviation = wanted[op]
        assert abs(once.mean() - mean) < 0.05 * deviation, op
        assert abs(once.std() - deviation) < 0.05 * deviation, op
        assert (once != again).any(), f"{op} drew the same numbers twice"


# -- what cannot be translated -----------------------------------------------------------------------------------


def test_missing_operators_are_named_together() -> None:
    def two_missing(x: torch.Tensor) -> torch.Tensor:
        middle = torch.median(x)
        return torch.cummax(x * middle, 0)[0]

    with pytest.raises(MissingOperatorError) as error:
        compiled(two_missing, torch.nn.Module(), torch.eye(3))
    message = str(error.value)
    first = two_missing.__code__.co_firstlineno
    for offset, overload in ((1, "aten.median.default"), (2, "aten.cummax.default")):
        assert f"{overload}\n    at {__file__}:{first + offset}, in two_missing" in message


def test_a_branch_on_data_is_named() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x

    with pytest.raises(CaptureError) as error:
        compiled(branch, torch.nn.Module(), torch.ones(3))
    assert f"{__file__}:{branch.__code__.co_firstlineno + 1}, in branch: if x.sum() > 0:" in str(error.value)


def test_one_value_for_each_true_is_refused() -> None:
    """How many there are is not known when the graph is made."""

    def assign(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), values)

    with pytest.raises(NotImplementedError, match="one value for each True"):
        compiled(assign, torch.nn.Module(), torch.ones(3), torch.tensor([True, False, True]), torch.ones(2))
