"""MFTrainOneStepCell against a step written by hand, in both modes.

A GRAPH compile takes about a second, so the steps are small and most tests look at one run from several sides.
"""

import importlib.util

import numpy as np
import pytest
import torch

if importlib.util.find_spec("mindspore") is None:
    pytest.skip("needs mindspore", allow_module_level=True)

from openmind_compat.runtime import load_mindspore

ms = load_mindspore()
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402

from openmind_compat.wrapper import (  # noqa: E402
    ClipPhase,
    ForwardBackwardPhase,
    MFTrainOneStepCell,
    OverflowPhase,
    UpdatePhase,
)

GRAPH, PYNATIVE = 0, 1
RNG = np.random.default_rng(0)
W1 = RNG.normal(size=(5, 4)).astype(np.float32)
B1 = RNG.normal(size=(5,)).astype(np.float32)
W2 = RNG.normal(size=(3, 5)).astype(np.float32)
X = RNG.normal(size=(4, 6, 4)).astype(np.float32)  # four batches
Y = RNG.normal(size=(4, 6, 3)).astype(np.float32)


@pytest.fixture(params=[GRAPH, PYNATIVE], ids=["graph", "pynative"])
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    ms.runtime.launch_blocking()
    yield request.param
    ms.set_context(mode=before)


class MLP(nn.Cell):
    """Mean squared error of two layers; `gain` scales the loss, and an infinite one makes it overflow."""

    def __init__(self, loss_shape=()):
        super().__init__()
        self.w1 = ms.Parameter(Tensor(W1), name="w1")
        self.b1 = ms.Parameter(Tensor(B1), name="b1")
        self.w2 = ms.Parameter(Tensor(W2), name="w2")
        self.mm = ops.MatMul(transpose_b=True)
        self.loss_shape = loss_shape

    def construct(self, x, y, gain):
        hidden = ops.relu(self.mm(x, self.w1) + self.b1)
        return (ops.square(self.mm(hidden, self.w2) - y).mean() * gain).reshape(self.loss_shape)


class OwnBackward(nn.Cell):
    """The loss is (w . x); the gradient is tripled, so that it is known whose backward ran."""

    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.array([1.0, 2.0], np.float32)), name="w")

    def construct(self, x):
        return (self.w * x).sum()

    def loss_and_gradients(self, x, sens):
        return (self.w * x).sum(), (x * 3.0 * sens,)


def torch_run(make_optimizer, steps, max_norm=None, group=1):
    """Losses, norms, gradients and weights of the same network under torch."""
    w1, b1, w2 = (torch.nn.Parameter(torch.tensor(w)) for w in (W1, B1, W2))
    optimizer = make_optimizer([w1, b1, w2])
    losses, norms, gradients = [], [], []
    for i in range(steps):
        x, y = torch.tensor(X[i % 4]), torch.tensor(Y[i % 4])
        loss = ((torch.relu(x @ w1.T + b1) @ w2.T - y) ** 2).mean()
        (loss / group).backward()
        losses.append(loss.item())
        gradients.append([p.grad.numpy().copy() for p in (w1, b1, w2)])
        if (i + 1) % group == 0:
            limit = max_norm if max_norm is not None else float("inf")
            norms.append(torch.nn.utils.clip_grad_norm_([w1, b1, w2], limit).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses, norms, gradients, [p.detach().numpy() for p in (w1, b1, w2)]


def sgd(rate):
    return lambda weights: torch.optim.SGD(weights, lr=rate)


def run(step, steps, gain=1.0):
    """The outputs of each step as numpy."""
    gains = gain if isinstance(gain, list) else [gain] * steps
    return [tuple(step(Tensor(X[i % 4]), Tensor(Y[i % 4]), Tensor(np.float32(gains[i])))) for i in range(steps)]


def weights_of(step):
    return [w.asnumpy().copy() for w in step.weights]


def same(left, right, rtol=1e-5, atol=1e-6):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def signature_of(tensor):
    return tuple(tensor.shape), tensor.dtype


def test_signature():
    import inspect

    parameters = inspect.signature(MFTrainOneStepCell).parameters
    assert [(p.name, p.default) for p in parameters.values() if p.kind is not p.VAR_KEYWORD] == [
        ("network", inspect.Parameter.empty),
        ("optimizer", inspect.Parameter.empty),
        ("use_clip_grad", False),
        ("max_grad_norm", 1.0),
        ("scale_sense", 1.0),
        ("local_norm", False),
    ]
    assert issubclass(MFTrainOneStepCell, nn.TrainOneStepWithLossScaleCell)


def test_plain_step_returns_five(mode):
    net = MLP()
    step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    outputs = run(step, 3)
    losses, _, _, weights = torch_run(sgd(0.1), 3)
    assert [len(o) for o in outputs] == [5, 5, 5]
    loss, overflow, scale, rate, norm = outputs[0]
    assert signature_of(loss) == ((), ms.float32)
    assert signature_of(overflow) == ((), ms.bool_) and not overflow
    assert signature_of(scale) == ((), ms.float32) and scale == 1
    assert signature_of(rate) == ((), ms.float32) and np.isclose(rate.asnumpy(), 0.1)
    assert norm is None
    assert not any(isinstance(value, ms.Parameter) for value in outputs[0])
    same([o[0].asnumpy() for o in outputs], losses)
    same(weights_of(step), weights)


def test_clipping_and_local_norm(mode):
    limit = 8.0
    losses, norms, gradients, weights = torch_run(sgd(0.05), 4, limit)
    assert min(norms) < limit < max(norms)  # some steps are clipped and some are not
    net = MLP((1,))
    step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.05), True, limit, 64, local_norm=True)
    outputs = run(step, 4)
    same([o[0].asnumpy() for o in outputs], [[x] for x in losses])  # in the network's own shape
    same([o[4].asnumpy() for o in outputs], [[n] for n in norms])
    same(weights_of(step), weights)
    for output, expected in zip(outputs, gradients, strict=True):
        assert len(output) == 7
        same([output[5].asnumpy()], [[(g.astype(np.float64) ** 2).sum() for g in expected]])
        assert output[6].asnumpy().tolist() == [20, 5, 15]
    assert signature_of(outputs[0][4]) == ((1,), ms.float32)
    assert signature_of(outputs[0][5]) == ((3,), ms.float32)
    assert signature_of(outputs[0][6]) == ((3,), ms.int64)


@pytest.mark.parametrize("scale", [0.5, 1024, "tensor", "fixed", "dynamic"])
def test_loss_scale_does_not_change_the_weights(mode, scale):
    made = {
        "tensor": lambda: Tensor([8.0], ms.float32),
        "fixed": lambda: nn.FixedLossScaleUpdateCell(128.0),
        "dynamic": lambda: nn.DynamicLossScaleUpdateCell(8, 2, 2),
    }
    value = made[scale]() if isinstance(scale, str) else scale
    net = MLP()
    step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), scale_sense=value)
    outputs = run(step, 3)
    losses, _, _, weights = torch_run(sgd(0.1), 3)
    same([o[0].asnumpy() for o in outputs], losses)
    same(weights_of(step), weights)
    returned = [o[2] for o in outputs]
    assert all(r.dtype == ms.float32 for r in returned)
    values = [r.asnumpy().reshape(-1).tolist() for r in returned]
    if scale == "dynamic":
        assert values == [[8], [16], [16]]
    else:
        assert values == [[{"tensor": 8, "fixed": 128}.get(scale, scale)]] * 3
    assert returned[0].shape == ((1,) if scale == "tensor" else ())

    if scale == "tensor":
        with pytest.raises(TypeError):
            step.set_sense_scale(4.0)
        with pytest.raises(ValueError):
            step.set_sense_scale(Tensor([1.0, 2.0]))
        step.set_sense_scale(Tensor([4.0], ms.float32))  # after the graph was compiled
        assert run(step, 1)[0][2].asnumpy().tolist() == [4.0]
        assert returned[0].asnumpy().tolist() == [8.0]  # what was returned stays


def test_overflow_with_dynamic_scale(mode):
    net = MLP()
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    step = MFTrainOneStepCell(net, optimizer, True, 1.0, nn.DynamicLossScaleUpdateCell(8, 2, 2))
    inf = float("inf")
    gains = [1.0, 1.0, 1.0, 1.0, inf, inf, 1.0, 1.0]
    scales, flags = [], []
    for i, gain in enumerate(gains):
        before = weights_of(step) + [m.asnumpy().copy() for m in optimizer.moments]
        count = int(optimizer.global_step.asnumpy()[0])
        _, overflow, scale, _, _ = run(step, 1, gain)[0]
        after = weights_of(step) + [m.asnumpy() for m in optimizer.moments]
        moved = any((a != b).any() for a, b in zip(after, before, strict=True))
        assert moved is (gain != inf)
        assert int(optimizer.global_step.asnumpy()[0]) == count + (gain != inf), i
        scales.append(float(scale))
        flags.append(bool(overflow))
    # The second clean step after an overflow counts from the overflow: it grows at the end of the window.
    assert scales == [8, 16, 16, 32, 16, 8, 8, 16]
    assert flags == [gain == inf for gain in gains]


def test_clipping_leaves_gradients_under_the_limit_alone():
    from openmind_compat.wrapper.clip import GlobalNorm, clip_by_norm

    gradients = tuple(Tensor(w) for w in (W1, B1, W2))
    norm = GlobalNorm()(gradients)
    kept = clip_by_norm(gradients, norm, float(norm) * 1.001)
    same([g.asnumpy() for g in kept], [W1, B1, W2], 0, 0)
    halved = clip_by_norm(gradients, norm, float(norm) / 2)
    same([g.asnumpy() for g in halved], [W1 / 2, B1 / 2, W2 / 2])


def test_overflow_finds_any_position():
    from openmind_compat.wrapper.overflow import AllFinite

    check = AllFinite()
    shapes = [(), (7,), (3, 5), (2, 3, 4), (33, 65)]
    largest = np.finfo(np.float32).max
    clean = [np.full(shape, largest, np.float32) for shape in shapes]
    assert check(tuple(Tensor(g) for g in clean))
    for number, bad in ((0, np.nan), (1, np.inf), (2, -np.inf), (3, np.nan), (4, np.inf), (4, np.nan)):
        for where in {0, clean[number].size // 2, clean[number].size - 1}:
            spoiled = [g.copy() for g in clean]
            spoiled[number].reshape(-1)[where] = bad
            assert not check(tuple(Tensor(g) for g in spoiled)), (number, bad, where)


class TestLearningRate:
    def test_scheduled(self, mode):
        net = MLP()
        schedule = nn.PolynomialDecayLR(0.1, 0.02, 4, 1.0)
        step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), schedule))
        rates = [o[3] for o in run(step, 4, [1.0, float("inf"), 1.0, 1.0])]
        same([r.asnumpy() for r in rates], [0.1, 0.08, 0.08, 0.06])  # no progress in the overflowing step
        assert signature_of(rates[0]) == ((), ms.float32)

    def test_grouped_returns_the_last_groups(self, mode):
        net = MLP()
        groups = [{"params": [net.w1], "lr": 0.1}, {"params": [net.b1, net.w2], "lr": 0.02}]
        step = MFTrainOneStepCell(net, nn.SGD(groups, 0.5))
        rate = run(step, 1)[0][3]
        assert signature_of(rate) == ((), ms.float32) and np.isclose(rate.asnumpy(), 0.02)

    def test_grouped_and_scheduled(self, mode):
        net = MLP()
        groups = [
            {"params": [net.w1], "lr": nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0)},
            {"params": [net.b1, net.w2], "lr": nn.PolynomialDecayLR(0.02, 0.0, 10, 1.0)},
        ]
        step = MFTrainOneStepCell(net, nn.SGD(groups, 0.5))
        same([o[3].asnumpy() for o in run(step, 2)], [0.02, 0.018])

    def test_given_schedule_for_groups(self, mode):
        net = MLP()
        schedule = nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0)
        groups = [{"params": [net.w1], "lr": nn.PolynomialDecayLR(0.3, 0.0, 10, 1.0)}, {"params": [net.b1, net.w2]}]
        step = MFTrainOneStepCell(
            net, nn.SGD(groups, schedule), grouped_lr_scheduler=[{"lr_scheduler": schedule}], lr_scheduler=schedule
        )
        same([o[3].asnumpy() for o in run(step, 2)], [0.1, 0.09])


def test_experimental_adamw_is_torchs(mode):
    net = MLP()
    optimizer = experimental.AdamW(net.trainable_params(), lr=0.01, weight_decay=0.1)
    step = MFTrainOneStepCell(net, optimizer, True, 1.0)
    outputs = run(step, 5)
    losses, norms, _, weights = torch_run(lambda w: torch.optim.AdamW(w, lr=0.01, weight_decay=0.1), 5, 1.0)
    same([o[0].asnumpy() for o in outputs], losses)
    same([o[4].asnumpy()[0] for o in outputs], norms)
    same(weights_of(step), weights)
    assert np.isclose(outputs[0][3].asnumpy(), 0.01)


def test_network_with_its_own_backward(mode):
    net = OwnBackward()
    step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5), True, 1e9, scale_sense=16)
    loss, overflow, scale, _, norm = step(Tensor(np.array([1.0, -1.0], np.float32)))
    assert float(loss) == -1 and not overflow and float(scale) == 16
    same([norm.asnumpy()], [[np.sqrt(18.0)]])
    same(weights_of(step), [[-0.5, 3.5]])


def test_phases_are_the_step(mode):
    nets = [MLP(), MLP()]
    steps = [MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), True, 1.0, 64) for net in nets]
    forward_backward, check = ForwardBackwardPhase(steps[1]), OverflowPhase(steps[1])
    clip, update = ClipPhase(steps[1]), UpdatePhase(steps[1])
    whole = run(steps[0], 3)
    for i in range(3):
        loss, gradients = forward_backward(Tensor(X[i]), Tensor(Y[i]), Tensor(np.float32(1.0)))
        overflow, scale = check(*gradients)
        gradients, norm = clip(*gradients)
        rate = update(*gradients)
        expected = [value.asnumpy() for value in whole[i]]
        same([v.asnumpy() for v in (loss, overflow, scale, rate, norm)], expected)
    same(weights_of(steps[0]), weights_of(steps[1]))
    assert [w.name for w in nets[1].trainable_params()] == ["w1", "b1", "w2"]


def test_accumulation(mode):
    net = MLP()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    scale = nn.DynamicLossScaleUpdateCell(8, 2, 1)
    step = MFTrainOneStepCell(net, optimizer, True, 1.0, scale, gradient_accumulation_steps=2)
    losses, norms, _, weights = torch_run(sgd(0.1), 4, 1.0, group=2)
    first = run(step, 1)[0]
    same(weights_of(step), [W1, B1, W2], 0, 0)
    assert float(first[2]) == 8 and not first[1]
    rest = [tuple(step(Tensor(X[i]), Tensor(Y[i]), Tensor(np.float32(1.0)))) for i in (1, 2, 3)]
    same([o[0].asnumpy() for o in [first, *rest]], losses)
    same([rest[0][4].asnumpy()[0], rest[2][4].asnumpy()[0]], norms)
    same(weights_of(step), weights)
    assert [float(o[2]) for o in rest] == [16, 16, 32]
    assert int(optimizer.global_step.asnumpy()[0]) == 2

    # An overflow spoils its group only.
    own = weights_of(step)
    spoiled = run(step, 2, [float("inf"), 1.0])
    assert [bool(o[1]) for o in spoiled] == [True, True]
    assert [float(o[2]) for o in spoiled] == [32, 16]
    same(weights_of(step), own, 0, 0)
    assert [bool(o[1]) for o in run(step, 2)] == [False, False]
    assert int(optimizer.global_step.asnumpy()[0]) == 3


def test_moving_average(mode):
    net = MLP()
    step = MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), use_ema=True, ema_decay=0.75)
    average = [W1, B1, W2]
    for gain in (1.0, 1.0, float("inf")):
        run(step, 1, gain)
        if gain == 1.0:
            average = [0.75 * a + 0.25 * w for a, w in zip(average, weights_of(step), strict=True)]
    same([p.asnumpy() for p in step.ema_parameters], average)
    assert [p.name for p in step.ema_parameters] == ["ema.w1", "ema.b1", "ema.w2"]
    assert not {p.name for p in step.ema_parameters} & {p.name for p in step.trainable_params()}

    own, zero = weights_of(step), Tensor(np.float32(0.0))
    with step.ema_weights():
        same(weights_of(step), average)
    same(weights_of(step), own, 0, 0)
    step(Tensor(X[0]), Tensor(Y[0]), zero)  # the compiled graph still sees the weights: no gradient, no change
    same(weights_of(step), own, 0, 0)
    step.restart_ema()
    same([p.asnumpy() for p in step.ema_parameters], own, 0, 0)


def test_spikes_are_skipped(mode):
    net = MLP()
    step = MFTrainOneStepCell(
        net,
        nn.SGD(net.trainable_params(), 0.1),
        use_clip_grad=True,
        use_skip_data_by_global_norm=True,
        global_norm_spike_threshold=100.0,
    )
    assert not run(step, 1, 1e4)[0][1]
    same(weights_of(step), [W1, B1, W2], 0, 0)
    run(step, 1)
    assert (weights_of(step)[0] != W1).any()


def make(**arguments):
    net = MLP()
    return MFTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), **arguments)


@pytest.mark.parametrize("value", [None, "1.0", True, [1.0], np.ones(1)])
def test_scale_sense_of_another_type(value):
    with pytest.raises(TypeError, match="scale_sense"):
        make(scale_sense=value)


@pytest.mark.parametrize("value", [Tensor([1.0, 2.0]), Tensor([[1.0]]), 0, -1.0, float("nan"), float("inf")])
def test_scale_sense_out_of_range(value):
    with pytest.raises(ValueError, match="scale_sense"):
        make(scale_sense=value)


@pytest.mark.parametrize("value", [2, 0.5, np.float32(0.5), Tensor(2, ms.int32), Tensor(2.0, ms.float16)])
def test_scale_sense_becomes_float32(value):
    step = make(scale_sense=value)
    assert step.scale_sense.dtype == ms.float32
    assert float(step.scale_sense.asnumpy()) == float(value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"unheard_of": 1}, TypeError, "unheard_of"),
        ({"calculate_per_token_loss": True}, TypeError, "calculate_per_token_loss.*single output"),
        ({"use_skip_data_by_global_norm": True}, TypeError, "use_clip_grad"),
        ({"global_norm_spike_threshold": "1"}, TypeError, "global_norm_spike_threshold"),
        ({"gradient_accumulation_steps": 0}, ValueError, "gradient_accumulation_steps"),
        ({"gradient_accumulation_steps": 1.5}, TypeError, "gradient_accumulation_steps"),
        ({"use_ema": True, "ema_decay": 1.0}, ValueError, "ema_decay"),
        ({"use_clip_grad": True, "max_grad_norm": 0}, ValueError, "max_grad_norm"),
        ({"use_clip_grad": True, "max_grad_norm": "1"}, TypeError, "max_grad_norm"),
    ],
)
def test_wrong_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        make(**arguments)


def test_what_mindformers_passes_is_accepted():
    make(
        max_grad_norm=0,  # not read, since nothing is clipped
        parallel_config=object(),
        calculate_per_token_loss=False,
        global_norm_spike_threshold=1.0,
        print_separate_loss=True,
        use_skip_data_by_global_norm=False,
        lr_scheduler=None,
        grouped_lr_scheduler=None,
    )


def test_without_moving_average():
    with pytest.raises(RuntimeError, match="use_ema"):
        _ = make().ema_parameters
