"""Small functions of tensors that between them use every entry of the operator table, and its corners.

``parameters`` of a case get gradients; ``data`` are inputs of the batch, such as indices and masks, and do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
INF = float("inf")


@dataclass(frozen=True, eq=False)
class Case:
    """One function and the tensors to call it with.

    Attributes:
        group: Cases of one group are compiled together in GRAPH mode.
        name: Readable, unique within its group.
        function: Called with parameters, buffers and data in that order; returns a tensor or several.
        parameters: Differentiable inputs.
        buffers: Inputs that the function may change in place.
        data: All other inputs.
        covers: ATen overloads that must appear in the captured graphs.
        forward: Allowed error of results relative to the largest element.
        gradient: The same for gradients.
    """

    group: str
    name: str
    function: Callable[..., Any]
    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    data: tuple[torch.Tensor, ...]
    covers: tuple[Any, ...]
    forward: float
    gradient: float

    def __str__(self) -> str:
        return f"{self.group}-{self.name}"


CASES: list[Case] = []
_GENERATOR = torch.Generator().manual_seed(0)
_group = ""


def group(name: str) -> None:
    """Name the group of the cases that follow."""
    global _group
    _group = name


def case(
    name: str,
    function: Callable[..., Any],
    *parameters: tuple[int, ...] | torch.Tensor,
    data: tuple[torch.Tensor, ...] = (),
    buffers: tuple[torch.Tensor, ...] = (),
    covers: str = "",
    forward: float = 1e-5,
    gradient: float = 1e-4,
) -> None:
    """Enter a case. A parameter is a tensor, or a shape for random numbers; ``covers`` reads ``"add.Tensor mm"``."""
    tensors = tuple(p if isinstance(p, torch.Tensor) else normal(*p) for p in parameters)
    overloads = tuple(_overload(word) for word in covers.split())
    CASES.append(Case(_group, name, function, tensors, buffers, data, overloads, forward, gradient))


def _overload(word: str) -> Any:
    name, _, overload = word.partition(".")
    namespace = torch.ops.prims if name.startswith("prims::") else aten
    return getattr(getattr(namespace, name.removeprefix("prims::")), overload or "default")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def uniform(*shape: int, low: float = 0.5, high: float = 2.0) -> torch.Tensor:
    return torch.rand(shape, generator=_GENERATOR) * (high - low) + low


def integers(high: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_GENERATOR)


def flags(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_GENERATOR) < 0.5


def apart(*shape: int) -> torch.Tensor:
    """Numbers no two of which are close, for maxima and sorting."""
    n = torch.Size(shape).numel()
    return (torch.randperm(n, generator=_GENERATOR).float() - n / 2 + 0.25).reshape(shape) / 3


# -- arithmetic --------------------------------------------------------------------------------------------------

group("arithmetic")
case("add", lambda x, y: x + y, (2, 3), (2, 3), covers="add.Tensor")
case("add-broadcast", lambda x, y, z: x + y + z, (2, 1, 4), (3, 1), ())
case("add-number", lambda x: aten.add.Scalar(x, 2.5) + 3, (2, 3), covers="add.Scalar")
case("add-alpha", lambda x, y: torch.add(x, y, alpha=-0.3), (2, 3), (3,))
case("add-transposed", lambda x, y: x.t() + y, (3, 2), (2, 3))
case("add-both-transposed", lambda x, y: x.transpose(0, 2) + y.transpose(0, 2), (3, 2, 4), (3, 2, 4))
case("add-transposed-broadcast", lambda x, y: x.transpose(0, 1) + y, (3, 2, 4), (4,))
case("add-expanded", lambda x, y: x.expand(3, 4) + y.expand(3, 4), (1, 4), (3, 1))
case("add-zero-dim", lambda x, y: x + y, (), ())
case("add-integers-to-floats", lambda x, i: x + i, (2, 3), data=(integers(5, 2, 3),))
case("add-number-to-integers", lambda i: (i + 1.5, i + 2, 1 - i), data=(integers(5, 2, 3),))
case("add-flags", lambda x, m: (x + m, m + 1, m + 0.5), (2, 3), data=(flags(2, 3),))
case("sub", lambda x, y: x - y, (2, 3), (3,), covers="sub.Tensor")
case("sub-number", lambda x: aten.sub.Scalar(x, 2.5), (2, 3), covers="sub.Scalar")
case("sub-alpha", lambda x, y: torch.sub(x, y, alpha=2), (2, 3), (2, 1))
case("rsub", lambda x: 1 - x, (2, 3), covers="rsub.Scalar")
case("rsub-tensor", lambda x, y: aten.rsub.Tensor(x, y, alpha=3), (2, 3), (3,), covers="rsub.Tensor")
case("mul", lambda x, y: x * y, (2, 3), (2, 3), covers="mul.Tensor")
case("mul-broadcast", lambda x, y, z: x * y * z, (2, 1, 4), (3, 1), ())
case("mul-number", lambda x: aten.mul.Scalar(x, 2.5) * 3, (2, 3), covers="mul.Scalar")
case("mul-by-one", lambda x, i: (x * 1, i * 1.0, x * torch.ones(2, 1, 3)), (2, 3), data=(integers(5, 2, 3),))
case("mul-flags", lambda x, m, n: (x * m, m * n, m * 2), (2, 3), data=(flags(2, 3), flags(3)))
case("mul-integers", lambda i: (i * i, i * 2, i * 0.5), data=(integers(9, 2, 3),))
case("mul-transposed", lambda x, y: x.t() * y.t() * 2, (3, 2), (3, 2))
case("div", lambda x, y: x / y, (2, 3), uniform(3), covers="div.Tensor")
case("div-number", lambda x: (x / 3, x / 4, aten.div.Scalar(x, 0.7)), (2, 3), covers="div.Scalar")
case("div-number-by", lambda x: 2 / x, uniform(2, 3), covers="reciprocal")
case("div-integers", lambda i, j: (i / j, i / 2), data=(integers(9, 2, 3), integers(5, 3, low=1)))
case("div-by-zero", lambda x: x / 0, data=(torch.tensor([1.0, -1.0, 0.0]),))
case(
    "div-floor",
    lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="floor")),
    data=(normal(3, 4) * 3, uniform(4)),
    covers="div.Tensor_mode",
)
case("div-trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), data=(normal(3, 4) * 3, uniform(4)))
case(
    "div-modes-integers",
    lambda i, j: (
        torch.div(i, j, rounding_mode="floor"),
        torch.div(i, j, rounding_mode="trunc"),
        aten.div.Scalar_mode(i, 3, rounding_mode="floor"),
        aten.div.Scalar_mode(i, 3, rounding_mode="trunc"),
        aten.div.Scalar_mode(i, 4, rounding_mode=None),
    ),
    data=(integers(20, 3, 4, low=-20), torch.tensor([-3, 2, 7, -1])),
    covers="div.Scalar_mode",
)
case(
    "div-trunc-large-integers",
    lambda i: torch.div(i, 3, rounding_mode="trunc"),
    data=(torch.tensor([100_000_001, -100_000_001, 2**40 + 1]),),
)
case("floor-divide", lambda i, x: (i // 3, i // -4, x // 0.7), data=(integers(20, 3, 4, low=-20), normal(5) * 3))
case(
    "floor-divide-tensor",
    lambda i, j: aten.floor_divide(i, j),
    data=(integers(20, 4), integers(5, 4, low=1)),
    covers="floor_divide",
)
case("remainder", lambda x, y: torch.remainder(x, y), (3, 4), uniform(4), covers="remainder.Tensor")
case(
    "remainder-number",
    lambda x, i: (x % 0.7, x % -0.7, i % 3, i % -3),
    data=(normal(3, 4) * 3, integers(20, 3, 4, low=-20)),
    covers="remainder.Scalar",
)
case(
    "fmod",
    lambda x, y: (torch.fmod(x, 0.7), torch.fmod(x, y)),
    normal(3, 4) * 3,
    uniform(4),
    covers="fmod.Tensor fmod.Scalar",
)
case(
    "fmod-integers",
    lambda i: (torch.fmod(i, 3), torch.fmod(i, torch.tensor([-3, 2, 7, -1]))),
    data=(integers(20, 3, 4, low=-20),),
)
for exponent in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7):
    case(f"pow-{exponent}", lambda x, e=exponent: x**e, uniform(2, 3), covers="pow.Tensor_Scalar" if exponent else "")
case("pow-negative-base", lambda x: (x**2, x**3, x**4, x**-1), (2, 3))
case("pow-integers", lambda i: (i**2, i**3, i**0.5, i**2.0), data=(integers(9, 2, 3),))
case("pow-tensor", lambda x, y: x**y, uniform(2, 3), (3,), covers="pow.Tensor_Tensor")
case("pow-of-number", lambda x: (2**x, 10000.0**x), uniform(2, 3), covers="pow.Scalar")
case("square", lambda x: torch.square(x), (2, 3))
case("maximum", lambda x, y: torch.maximum(x, y), (2, 3), (3,), covers="maximum")
case("maximum-equal", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), torch.ones(3), torch.ones(3))
case("minimum", lambda x, y: torch.minimum(x, y), (2, 3), (2, 1), covers="minimum")
case(
    "maximum-lowest",
    lambda x: (torch.maximum(x, torch.full((), torch.finfo(torch.float32).min)), x.clamp(min=-3e38)),
    data=(torch.tensor([-INF, -1.0, 2.0]),),
)
case(
    "minimum-highest",
    lambda x: (torch.minimum(x, torch.full((), torch.finfo(torch.float32).max)), x.clamp(max=torch.finfo(x.dtype).max)),
    data=(torch.tensor([INF, -1.0, 2.0]),),
)
case("clamp", lambda x: (x.clamp(-0.5, 0.5), x.clamp(max=0.3), x.clamp(min=0.3)), (3, 4), covers="clamp")
case("clamp-tensor", lambda x, y: x.clamp(-y, y), (3, 4), uniform(4), covers="clamp.Tensor")
case("clamp-min", lambda x: torch.clamp_min(x, 0.2), (3, 4), covers="clamp_min")
case("clamp-min-tensor", lambda x, y: torch.clamp_min(x, y), (3, 4), (4,), covers="clamp_min.Tensor")
case("clamp-max", lambda x: torch.clamp_max(x, 0.2), (3, 4), covers="clamp_max")
case("clamp-max-tensor", lambda x, y: torch.clamp_max(x, y), (3, 4), (3, 1), covers="clamp_max.Tensor")
case("clamp-integers", lambda i: (i.clamp(2, 5), i.clamp(min=1), i.clamp(1.5, 3.5)), data=(integers(9, 3, 4),))
case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (2, 3), (2, 3), (3,))
case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (2, 3), (2, 3), uniform(3))
case("lerp", lambda x, y, w: (torch.lerp(x, y, 0.3), torch.lerp(x, y, w)), (2, 3), (2, 3), uniform(2, 3))
case(
    "casts",
    lambda x, i: (x.long(), x.int(), i.float(), x.double(), i.bool(), x.to(torch.bool)),
    data=(torch.tensor([-1.7, -0.5, 0.0, 0.5, 2.9]), torch.tensor([0, 1, -2])),
    covers="_to_copy",
)
case("cast-through-double", lambda x: (x.double() * 2).float(), (2, 3))
case("cast-half", lambda x: (x.half() * 2).float(), (2, 3), forward=2e-3, gradient=2e-3)

# -- functions of one number -------------------------------------------------------------------------------------

group("functions")
for name in ("exp", "expm1", "sin", "cos", "tanh", "sigmoid", "erf", "abs", "neg", "relu"):
    case(name, getattr(torch, name), (3, 4), covers=name)
for name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p"):
    case(name, getattr(torch, name), uniform(3, 4), covers=name)
for name in ("tan", "sinh", "cosh", "atan", "asin", "acos", "asinh", "atanh", "erfc", "exp2"):
    case(name, getattr(torch, name), uniform(3, 4, low=-0.9, high=0.9), covers=name)
for name in ("acosh", "log2", "log10"):
    case(name, getattr(torch, name), uniform(3, 4, low=1.1, high=3.0), covers=name)
case("zero-dim", lambda x: (x.exp(), x.tanh(), torch.sigmoid(x), x.abs().sqrt()), ())
case("transposed", lambda x: (x.t().exp(), x.t().tanh(), torch.sigmoid(x.t()).t()), (3, 4))
case("expanded", lambda x: (x.expand(3, 4).exp() * 2, x.expand(3, 4).relu()), (1, 4))
case("integers", lambda i: (i.exp(), i.abs(), -i, i.sqrt(), torch.sigmoid(i), i.sign()), data=(integers(5, 2, 3),))
case("abs-at-zero", lambda x: (x.abs(), x.relu(), x.clamp(min=0)), torch.tensor([-1.0, 0.0, 1.0]))
case("sign", lambda x: x * x.sign(), (3, 4), covers="sign")
case("floor", lambda x: x * x.floor(), (3, 4), covers="floor")
case("ceil", lambda x: x * x.ceil(), (3, 4), covers="ceil")
case("trunc", lambda x: (x * x.trunc(), x.frac()), normal(3, 4) * 3, covers="trunc")
case("round", lambda x: x.round(), data=(torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4, 1.6]),), covers="round")
case("atan2", lambda x, y: torch.atan2(x, y), (3, 4), (4,), covers="atan2")
case("silu", F.silu, (3, 4), covers="silu")
case("silu-transposed", lambda x: F.silu(x.t()) * 2, (3, 4))
case("gelu", F.gelu, (3, 4), covers="gelu gelu_backward")
case("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), (3, 4), covers="gelu gelu_backward")
case("gelu-large", lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), torch.tensor([-12.0, -5.0, 0.0, 5.0, 12.0]))
case(
    "sigmoid-backward",
    lambda x: torch.sigmoid(x) * 2,
    torch.tensor([-90.0, -3.0, 0.0, 3.0, 90.0]),
    covers="sigmoid_backward",
)
case("tanh-backward", lambda x: torch.tanh(x) * 2, torch.tensor([-20.0, -3.0, 0.0, 3.0, 20.0]), covers="tanh_backward")
case("relu-backward", lambda x: F.relu(x.t()) * 2, (3, 4), covers="threshold_backward")
for name in (
    "elu",
    "leaky_relu",
    "hardtanh",
    "softplus",
    "logsigmoid",
    "hardswish",
    "hardsigmoid",
    "mish",
    "relu6",
    "selu",
    "celu",
    "softsign",
    "tanhshrink",
    "softshrink",
    "hardshrink",
):
    case(name, getattr(F, name), normal(3, 4) * 2)
case("softplus-large", lambda x: (F.softplus(x), F.logsigmoid(x)), torch.tensor([-100.0, -1.0, 0.5, 30.0, 100.0]))
case("glu", F.glu, (3, 4))
case("prelu", F.prelu, (3, 4), (1,))
case("threshold", lambda x: F.threshold(x, 0.1, 2.0), (3, 4))
case(
    "nan-to-num",
    lambda x: (torch.nan_to_num(x), torch.nan_to_num(x, 0.5, 1.0)),
    data=(torch.tensor([1.0, float("nan"), INF, -INF]),),
    covers="prims::where",
)
case("logit", lambda x: torch.logit(x, eps=1e-6), uniform(3, 4, low=0.1, high=0.9))
case("xlogy", torch.xlogy, (3, 4), uniform(3, 4))
case("logaddexp", torch.logaddexp, (3, 4), (4,))
case("quick-gelu", lambda x: x * torch.sigmoid(1.702 * x), (3, 4))

# -- comparison and logic ----------------------------------------------------------------------------------------

group("logic")


def _comparisons(f: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    return lambda x, i, j, m: (f(i, j), f(i, 1.5), f(x, i), f(x, 0), f(m, 1), f(i[..., None], j))


for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(
        name,
        _comparisons(getattr(torch, name)),
        data=(torch.tensor([[-1.0, 0.0, 2.0], [1.0, 1.0, 0.5]]), integers(3, 2, 3), integers(3, 3), flags(2, 3)),
        covers=f"{name}.Tensor {name}.Scalar",
    )
case("compare-nan", lambda x: (x == x, x != x, x < 1), data=(torch.tensor([1.0, float("nan"), INF]),))
case("compare-large-integers", lambda i: i == 2**24 + 1, data=(torch.tensor([2**24, 2**24 + 1, 2**24 + 2]),))
case(
    "logical",
    lambda m, n: (m & n, m | n, m ^ n, ~m, torch.logical_and(m, n), torch.logical_or(m, n), torch.logical_not(m)),
    data=(flags(3, 4), flags(4)),
    covers="bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not logical_and logical_or logical_not",
)
case(
    "logical-numbers",
    lambda i, x: (torch.logical_and(i, x), torch.logical_or(i, x), torch.logical_not(x), torch.logical_xor(i, x)),
    data=(integers(2, 3, 4), torch.tensor([0.0, 0.3, -0.5, 2.0])),
    covers="logical_xor",
)
case(
    "bitwise-integers",
    lambda i, j: (
        i & j,
        i | j,
        i ^ j,
        ~i,
        i & 3,
        i | 4,
        *(f(i, 5) for f in (aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar)),
    ),
    data=(integers(16, 3, 4), integers(16, 4)),
    covers="bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar",
)
case(
    "is-special",
    lambda x: (x.isnan(), x.isinf(), x.isfinite()),
    data=(torch.tensor([1.0, float("nan"), INF, -INF]),),
    covers="isnan isinf",
)
case("where", lambda x, y, m: torch.where(m, x, y), (2, 3), (2, 3), data=(flags(2, 3),), covers="where.self")
case("where-broadcast", lambda x, y, m: torch.where(m, x, y), (2, 1, 4), (3, 1), data=(flags(3, 4),))
case(
    "where-numbers",
    lambda x, m: (torch.where(m, x, 0.0), torch.where(m, -INF, x), torch.where(m, 1.0, 0.0)),
    (2, 3),
    data=(flags(2, 3),),
)
case("where-types", lambda x, i, m: torch.where(m, x, i), (2, 3), data=(integers(5, 2, 3), flags(3)))
case("where-guard", lambda x: torch.where(x > 0, x.abs().sqrt(), 0.0), (3, 4))
case("where-transposed", lambda x, y, m: torch.where(m.t(), x.t(), y), (3, 2), (2, 3), data=(flags(3, 2),))
case("masked-fill", lambda x, m: x.masked_fill(m, -1.5), (2, 3), data=(flags(2, 3),), covers="masked_fill.Scalar")
case(
    "masked-fill-tensor", lambda x, y, m: x.masked_fill(m, y), (2, 3), (), data=(flags(3),), covers="masked_fill.Tensor"
)
case("masked-fill-broadcast", lambda x, m: x.masked_fill(m[:, None], 0.0), (2, 4, 3), data=(flags(2, 3),))
case("masked-assign", lambda i: i.masked_fill(i == -100, 0), data=(torch.tensor([1, -100, 3]),))
case(
    "new-tensors",
    lambda x: (
        x + torch.zeros_like(x),
        x * torch.ones_like(x) * 2,
        x + torch.full_like(x, 2.5),
        x + x.new_zeros(3),
        x * x.new_ones(2, 1),
        x * x.new_full((3,), 0.5),
    ),
    (2, 3),
)
case(
    "new-tensors-whole",
    lambda x, i: (
        torch.zeros_like(x),
        torch.ones_like(x),
        torch.full_like(x, 2.5),
        torch.zeros_like(i),
        x.new_zeros(3),
        x.new_ones(2),
        x.new_full((2,), 0.5),
        torch.fill(x, 3),
        torch.ones_like(i, dtype=torch.bool),
    ),
    data=(normal(2, 3), integers(5, 2)),
    covers="zeros_like ones_like full_like new_zeros new_ones new_full fill.Scalar",
)
case("fill-tensor", lambda x, y: torch.fill(x, y), (2, 3), (), covers="fill.Tensor")
case(
    "empty",
    lambda x: (aten.empty_like(x) * 0, aten.new_empty(x, (2,)) * 0, aten.new_empty_strided(x, (2, 2), (2, 1)) * 0),
    data=(normal(2, 3),),
    covers="empty_like new_empty new_empty_strided",
)

# -- views -------------------------------------------------------------------------------------------------------

group("views")
case(
    "copies",
    lambda x: (x.clone() * 2, x.detach() * x, aten.alias(x) * 3, x.contiguous() * 4),
    (2, 3),
    covers="clone detach alias",
)
case(
    "reshapes",
    lambda x: (x.view(3, 8), x.reshape(-1), x.unsqueeze(1), x.unsqueeze(-1), x.flatten(1), x.unflatten(2, (2, 2))),
    (2, 3, 4),
    covers="view unsqueeze",
)
case(
    "squeeze",
    lambda x: (x.squeeze() * 2, x.squeeze(0) * 3, x.squeeze(-1), x.squeeze((0, 3))),
    (1, 3, 2, 1),
    covers="squeeze squeeze.dim squeeze.dims",
)
case(
    "private-views",
    lambda x: (aten._unsafe_view(x * 2, (2, 6)) * 3, aten._reshape_alias(x, (6, 2), (2, 1)) * 2),
    (3, 4),
    covers="_unsafe_view _reshape_alias",
)
case(
    "reshape-transposed",
    lambda x: (x.transpose(1, 2).reshape(2, -1), x.transpose(-1, -2).reshape(-1, 3), x.permute(2, 0, 1).reshape(4, 6)),
    (2, 3, 4),
    covers="transpose.int permute",
)
case("reshape-swapped-batch", lambda x, y: x.transpose(1, 2).reshape(6, 5, 4).bmm(y), (2, 5, 3, 4), (6, 4, 2))
case("merge-heads", lambda x: x.transpose(1, 2).reshape(2, 5, 12) * 2, (2, 3, 5, 4))
case(
    "reshape-expanded",
    lambda x: (x[:, :, None].expand(2, 3, 4, 5).reshape(2, 12, 5) * 2, x.expand(1, 2, 3, 5)[0]),
    (2, 3, 5),
)
case("transposes", lambda x: (x.t() * 2, x.T, x.mT, x.movedim(0, 1), x.swapaxes(-1, 0)), (2, 3), covers="t")
case("transpose-vector", lambda x, y: (aten.t(x) * 2, y.transpose(0, -1) * 3), (3,), ())
case("permute-negative", lambda x: x.permute(-1, 0, -2) * 2, (2, 3, 4))
case(
    "permute-twice", lambda x: x.permute(2, 0, 1).permute(1, 2, 0) * 2 + x.permute(1, 0, 2).permute(1, 0, 2), (2, 3, 4)
)
case(
    "expand", lambda x, y: (x.expand(2, 3, 4) * 2, y.expand(2, 3), x.expand(-1, -1, 4)), (1, 3, 1), (), covers="expand"
)
case("expand-then-transpose", lambda x: x.expand(2, 3, 4).transpose(1, 2) * 2, (3, 1))
case(
    "slice",
    lambda x: (x[1:], x[:, :-1] * 2, x[..., 1:3], x[:, ::2], x[-2:, 1:2]),
    (3, 4, 5),
    covers="slice.Tensor slice_backward",
)
case("slice-step-backward", lambda x: (x[1::2] * 2, x[:, 1:4:2]), (5, 5))
case("slice-out-of-range", lambda x: (x[:99] * 2, x[-99:2]), (3, 4))
case("slice-expanded", lambda x: (x.expand(4, 3)[1:3] * 2, x.expand(4, 3)[:, 1:]), (1, 3))
case("slice-transposed", lambda x: x.t()[1:, :2] * 2, (3, 4))
case("slice-negative-dim", lambda x: aten.slice(x, -1, 1, 3) * 2, (3, 4))
case("rotate-half", lambda x: torch.cat((-x[..., 2:], x[..., :2]), -1) * 2, (2, 3, 4))
case("halves-with-other-use", lambda x: (x[..., :2] * 2, x[..., 2:] * 3, x * 4), (2, 4))
case("halves-overlapping", lambda x: x[:3] * 2 + x[1:] * 3, (4, 2))
case("halves-different-dims", lambda x: (x[:2] * 2, x[:, 2:] * 3), (4, 4))
case(
    "select",
    lambda x: (x[0] * 2, x[:, -1], x[..., 1], x.select(-1, -2)),
    (3, 4, 5),
    covers="select.int select_backward",
)
case("select-expanded", lambda x: (x.expand(4, 3)[2] * 2, x.expand(4, 3)[:, 1] * 3), (1, 3))
case("select-all", lambda x: x[0] * 2 + x[1] * 3, (2, 4))
case(
    "scatter-slices",
    lambda x, y, z: (torch.slice_scatter(x, y, 0, 1, 3) * 2, torch.select_scatter(x, z, 1, -1) * 3),
    (4, 3),
    (2, 3),
    (4,),
    covers="slice_scatter select_scatter",
)
case("scatter-slices-negative-dim", lambda x, y: torch.slice_scatter(x, y, -1, 1, None) * 2, (4, 3), (4, 2))


def _assign(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


case("assign-slice", lambda x, y: _assign(x, slice(1, 3), y) * 2, (4, 3), (3,))
case("assign-step", lambda x: _assign(x, (slice(None), slice(None, None, 2)), 1.0) * 2, (4, 3))
case("assign-step-tensor", lambda x, y: _assign(x, slice(1, None, 2), y) * 2, (5, 3), (2, 3))
case("assign-row", lambda x, y: _assign(x, 0, y) * 2, (4, 3), (3,))
case("assign-all", lambda x, y: _assign(x, slice(None), y) * 2, (4, 3), (3,))
case("assign-mask", lambda x, m: _assign(x, m, 0.0) * 2, (4, 3), data=(flags(4, 3),))
case("copy", lambda x, i: (aten.copy(x, i) * 2, aten.copy(i, x)), data=(normal(2, 3), integers(5, 2, 3)), covers="copy")
case(
    "checks",
    lambda x: [
        aten._assert_async.msg(x.sum() < 99, ""),
        aten._assert_tensor_metadata(x, None, None, torch.float32),
        x * 2,
    ][2:],
    (2, 3),
    covers="_assert_async.msg _assert_tensor_metadata",
)
case(
    "shift-right",
    lambda i: _assign(_assign(torch.zeros_like(i), (slice(None), slice(1, None)), i[:, :-1]), (slice(None), 0), 9),
    data=(integers(9, 2, 4),),
)
case("cat", lambda x, y: torch.cat((x, y, x), 1), (2, 3), (2, 1), covers="cat")
case("cat-negative-dim", lambda x, y: torch.cat((x, y), -2), (2, 3), (1, 3))
case("cat-types", lambda x, i: torch.cat((x, i)), (2, 3), data=(integers(5, 1, 3),))
case("cat-empty", lambda x: torch.cat((x, x[:, :0], torch.zeros(0)), 1), (2, 3))
case("cat-numbers", lambda x: torch.cat((x, torch.zeros_like(x), torch.ones_like(x)), 1), (2, 3))
case(
    "stack",
    lambda x, y: (torch.stack((x, y)), torch.stack((x, y), -1), torch.stack((x, y), 1)),
    (2, 3),
    (2, 3),
    covers="stack",
)
case("stack-zero-dim", lambda x, y: torch.stack((x, y)), (), ())
case("split", lambda x: [p * i for i, p in enumerate(x.split(2, -1), 1)], (3, 5), covers="split.Tensor")
case("split-sizes", lambda x: [p * i for i, p in enumerate(x.split((1, 3), 1), 1)], (3, 4), covers="split_with_sizes")
case("chunk", lambda x: x.chunk(3, -1)[0] * x.chunk(3, -1)[2], (2, 6))
case("unbind", lambda x: x.unbind(-1)[0] * x.unbind(1)[2] + x.unbind()[1], (3, 3), covers="unbind.int")
case("split-transposed", lambda x: x.t().split(2)[0] * 2, (3, 4))
case(
    "pad",
    lambda x: (F.pad(x, (1, 2)) * 2, F.pad(x, (0, 0, 1, 0), value=1.5), F.pad(x, (-1, 1, 0, -1)) * 3),
    (3, 4),
    covers="constant_pad_nd",
)
case("pad-integers", lambda i: (F.pad(i, (0, 1), value=-100), F.pad(i, (1, -1), value=7)), data=(integers(5, 2, 3),))
case("pad-modes", lambda x: (F.pad(x, (1, 1), mode="reflect"), F.pad(x, (1, 1), mode="circular") * 2), (1, 4, 3))
case("repeat", lambda x: (x.repeat(2, 1) * 2, x.repeat(2, 1, 3), torch.tile(x, (2,))), (2, 3), covers="repeat")
case("repeat-zero-dim", lambda x: x.repeat(3) * 2, ())
case("repeat-interleave", lambda x: (x.repeat_interleave(2, 0) * 2, x.repeat_interleave(3, dim=-1)), (2, 3))
case("flip", lambda x: (x.flip(0) * 2, x.flip((-1, 0)), torch.rot90(x)), (2, 3), covers="flip")
case("roll", lambda x: (x.roll(1, 0) * 2, x.roll((1, -1), (0, 1)), x.roll(2)), (3, 4))
case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), (2,), (3,))
case(
    "diagonal",
    lambda x: (x.diagonal() * 2, torch.diagonal(x, 1, -2, -1), x.trace()),
    (3, 4),
    covers="diagonal diagonal_backward",
)
case("diag-embed", lambda x: torch.diag_embed(x) * 2, (2, 3), covers="diag_embed")
case("unfold", lambda x: (x.unfold(1, 3, 2) * 2, x.unfold(0, 2, 1)), (3, 7), covers="unfold unfold_backward")
case("image-patches", lambda x: F.unfold(x, 2, stride=2) * 2, (1, 2, 4, 4))
case("pixel-shuffle", lambda x: (F.pixel_shuffle(x, 2) * 2, F.pixel_unshuffle(x, 2)), (1, 4, 2, 2))
case("window", lambda x: x.view(1, 2, 2, 2, 2, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 3) * 2, (1, 4, 4, 3))

# -- reductions --------------------------------------------------------------------------------------------------

group("reductions")
DIMS = ((0, False), (-1, True), ((0, 2), False), ((1, -1), True))
case("sum", lambda x: [x.sum(), *(x.sum(d, k) for d, k in DIMS)], (2, 3, 4), covers="sum sum.dim_IntList")
case(
    "sum-types",
    lambda i, m: (i.sum(), m.sum(), m.sum(0), i.sum(1, dtype=torch.float32)),
    data=(integers(9, 2, 3), flags(2, 3)),
)
case(
    "sum-expanded",
    lambda x: (x.expand(2, 3, 4).sum(1) * 2, x.expand(2, 3, 4).sum(), x.expand(2, 3, 4).sum((0, 1), True)),
    (3, 1),
)
case(
    "sum-transposed",
    lambda x: (x.transpose(0, 2).sum(1) * 2, x.transpose(0, 2).sum(0, True), x.permute(2, 0, 1).sum((0, 1))),
    (2, 3, 4),
)
case("sum-size-one", lambda x: (x.sum(1) * 2, x.sum((0, 1), True), x.sum((0, 1, 2))), (2, 1, 3))
case("sum-zero-dim", lambda x: (x.sum() * 2, x.mean(), x.sum(0)), ())
case("sum-constant", lambda x: torch.ones_like(x).sum(0) * x + torch.ones(3, 4).sum(), (3, 4))
case("mean", lambda x: [x.mean(), *(x.mean(d, k) for d, k in DIMS)], (2, 3, 4), covers="mean mean.dim")
case("mean-types", lambda i: (i.float().mean(), i.mean(0, dtype=torch.float32)), data=(integers(9, 2, 3),))
case("amax", lambda x: [x.amax(), *(x.amax(d, k) for d, k in DIMS)], apart(2, 3, 4), covers="amax")
case("amax-equal", lambda x: (x.amax(1), x.max(), x.amin(1)), torch.ones(2, 3))
case("amin", lambda x: [x.amin(), *(x.amin(d, k) for d, k in DIMS)], apart(2, 3, 4), covers="amin")
case("max", lambda x: x.max() + x.min() * 2, apart(3, 4), covers="max min")
case(
    "max-dim",
    lambda x: (*x.max(1), *x.max(0, keepdim=True), x.transpose(0, 1).max(-1)[0]),
    apart(3, 4),
    covers="max.dim",
)
case("min-dim", lambda x: (*x.min(1), *x.min(-2, keepdim=True)), apart(3, 4), covers="min.dim")
case("max-zero-dim", lambda x: (x.max(), x.amax(0), *x.max(0)), ())
case("max-flags", lambda m: (*m.max(1), m.amax(1), m.max()), data=(torch.tensor([[False, True], [False, False]]),))
case("max-integers", lambda i: (i.max(), i.amax(0), *i.max(1), i.min(), i.argmax(1)), data=(apart(3, 4).mul(3).long(),))
case(
    "arg-extremes",
    lambda x: (x.argmax(), x.argmax(1), x.argmax(0, True), x.argmin(), x.argmin(-1), x.t().argmax(-1)),
    data=(apart(3, 4),),
    covers="argmax argmin",
)
case("argmax-equal", lambda x, m: (x.argmax(-1), m.int().argmax(-1)), data=(torch.ones(2, 3), flags(3, 4)))
case(
    "any-all",
    lambda m: (m.any(), m.all(), m.any(0), m.all(-1, True), aten.any.dims(m, (0, 1)), aten.all.dims(m, (0,))),
    data=(flags(3, 4),),
    covers="any all any.dim all.dim any.dims all.dims",
)
case("any-numbers", lambda i, x: (i.any(1), i.all(1), x.any(), x.all(0)), data=(integers(2, 3, 4), normal(3, 4)))
case("cumsum", lambda x: (x.cumsum(0) * 2, x.cumsum(-1)), (3, 4), covers="cumsum")
case(
    "cumsum-types",
    lambda i, m: (i.cumsum(1), m.cumsum(0), m.long().cumsum(-1) * m),
    data=(integers(9, 2, 3), flags(2, 3)),
)
case("cumsum-zero-dim", lambda x: x.cumsum(0) * 2, ())
case("cumprod", lambda x: x.cumprod(1), uniform(2, 3), covers="cumprod")
case("prod", lambda x: (x.prod(), x.prod(1), x.prod(0, keepdim=True)), uniform(2, 3), covers="prod prod.dim_int")
case(
    "var",
    lambda x: (x.var(), x.var(1), x.var((0, 2), correction=0), x.std(-1, keepdim=True), x.std()),
    (2, 3, 4),
    covers="var.correction",
)
case(
    "var-mean",
    lambda x: (*torch.var_mean(x, (1, 2)), *torch.var_mean(x, -1, correction=0, keepdim=True)),
    (2, 3, 4),
    covers="var_mean.correction",
)
case("var-of-one", lambda x: x.var(1), data=(normal(3, 1),))
case(
    "norm",
    lambda x: (x.norm(), x.norm(dim=-1), x.norm(p=1, dim=0, keepdim=True), torch.linalg.vector_norm(x, INF, 1)),
    (3, 4),
)
case("normalize", lambda x: F.normalize(x, dim=-1), (3, 4))
case("cosine-similarity", lambda x, y: F.cosine_similarity(x, y, dim=-1), (3, 4), (3, 4))
case("logsumexp", lambda x: (x.logsumexp(-1), x.logsumexp((0, 1))), (3, 4))
case("logsumexp-infinite", lambda x, m: (x + m).logsumexp(-1), (2, 3), data=(torch.tensor([0.0, -INF, 0.0]),))
case("sort", lambda x: (*x.sort(), *x.sort(0, descending=True), x.argsort(-1)), apart(3, 4), covers="sort")
case("topk", lambda x: (*x.topk(2), *x.topk(2, dim=0), *x.topk(2, largest=False)), apart(3, 4), covers="topk")
case(
    "router",
    lambda x: (lambda w, i: w / w.sum(-1, keepdim=True) * F.one_hot(i, 4).sum(1))(*x.softmax(-1).topk(4)),
    apart(3, 4),
)
case("count-nonzero", lambda i: (i.count_nonzero(), i.count_nonzero(1)), data=(integers(2, 3, 4),))

group("softmax")
CLOSED = torch.zeros(2, 1, 3, 4)
CLOSED[0, :, :, 2:] = -INF
CLOSED[1, :, 0] = -INF
CLOSED[1, :, 1, 1:] = -INF
case(
    "softmax",
    lambda x: (x.softmax(-1), x.softmax(0) * 2, x.softmax(1)),
    (2, 3, 4),
    covers="_softmax _softmax_backward_data",
)
case("softmax-zero-dim", lambda x: x.softmax(0) * 2 + x, ())
case("softmax-transposed", lambda x: x.transpose(1, 2).softmax(-1), (2, 3, 4))
case("softmax-integers", lambda i: i.softmax(-1, dtype=torch.float32), data=(integers(5, 2, 3),))
case("softmax-half", lambda x: x.half().softmax(-1, dtype=torch.float32), (2, 3), gradient=2e-3)
case(
    "softmax-large",
    lambda x: (x.softmax(-1), x.log_softmax(-1)),
    torch.tensor([[1000.0, 999.0, -1000.0], [0.0, 1e4, 1.0]]),
)
case("softmax-masked", lambda x, m: (x + m).softmax(-1), (2, 2, 3, 4), data=(CLOSED[:1],))
case(
    "softmax-masked-fill",
    lambda x, m: x.masked_fill(m, -INF).softmax(-1),
    (3, 4),
    data=(torch.tensor([[True, False, False, True]] * 3),),
)
case(
    "log-softmax",
    lambda x: (x.log_softmax(-1), x.log_softmax(0) * 2),
    (3, 4),
    covers="_log_softmax _log_softmax_backward_data",
)
case("log-softmax-masked", lambda x, m: (x + m).log_softmax(-1)[..., :2], (2, 2, 3, 4), data=(CLOSED[:1],))
# Torch has NaN in a row that is closed throughout, so only the rows after it are looked at.
case("rows-after-closed", lambda x, m: (x + m).softmax(-1)[:, :, 1:], data=(normal(2, 2, 3, 4), CLOSED))
case("rows-after-cast", lambda x, m: (x.double() + m.double()).softmax(-1)[:, :, 1:], data=(normal(2, 2, 3, 4), CLOSED))
case(
    "rows-after-log", lambda x, m: (x + m.log()).softmax(-1)[:, :, 1:], data=(normal(2, 2, 3, 4), (CLOSED == 0).float())
)
case(
    "rows-after-cat",
    lambda x, m: torch.cat((x + m, m + x), -1).softmax(-1)[:, :, 1:],
    data=(normal(2, 2, 3, 4), CLOSED),
)
case("safe-softmax", lambda x, m: aten._safe_softmax(x + m, -1), (2, 2, 3, 4), data=(CLOSED,), covers="_safe_softmax")
case("softmin", lambda x: F.softmin(x, -1), (3, 4))

# -- matrix products ---------------------------------------------------------------------------------------------

group("linear")
case("mm", lambda x, y: x @ y, (2, 3), (3, 4), covers="mm")
case("mm-transposed", lambda x, y: (x.t() @ y, x.t() @ y.t().contiguous().t()), (3, 2), (3, 4))
case("mm-both-transposed", lambda x, y: x.t() @ y.t(), (3, 2), (4, 3))
case("mm-size-one", lambda x, y: x @ y, (1, 3), (3, 1))
case("mm-expanded", lambda x, y: x.expand(2, 3) @ y, (1, 3), (3, 4))
case("linear", F.linear, (2, 3, 4), (5, 4), (5,), covers="addmm")
case("linear-no-bias", F.linear, (2, 3, 4), (5, 4))
case("linear-vector", F.linear, (4,), (5, 4), (5,))
case(
    "addmm",
    lambda c, x, y: (torch.addmm(c, x, y, beta=0.5, alpha=2), torch.addmm(c, x, y, alpha=-1)),
    (2, 4),
    (2, 3),
    (3, 4),
)
case("addmm-broadcast", lambda c, x, y: torch.addmm(c, x, y), (2, 1), (2, 3), (3, 2))
case("addmm-size-one", lambda c, x, y: torch.addmm(c, x, y), (1,), (2, 3), (3, 4))
case("bmm", lambda x, y: torch.bmm(x, y), (2, 3, 4), (2, 4, 5), covers="bmm")
case("bmm-transposed", lambda x, y: (x @ x.transpose(1, 2), x.transpose(1, 2) @ y), (2, 3, 4), (2, 3, 5))
case("bmm-permuted", lambda x, y: x.permute(1, 0, 2).bmm(y.permute(2, 1, 0)), (3, 2, 4), (5, 4, 2))
case("bmm-size-one", lambda x, y: x.transpose(1, 2).bmm(y), (2, 1, 4), (2, 1, 5))
case("bmm-expanded", lambda x, y: x[None].expand(2, 3, 4).bmm(y), (3, 4), (2, 4, 5))
case("matmul-heads", lambda x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), (2, 3, 2, 4), (2, 5, 2, 4))
case("matmul-broadcast", lambda x, y: x @ y, (2, 3, 4), (4, 5))
case("matmul-broadcast-batch", lambda x, y: x @ y, (2, 1, 3, 4), (2, 4, 5))
case(
    "baddbmm",
    lambda c, x, y: (torch.baddbmm(c, x, y, beta=0.5, alpha=2), torch.baddbmm(c, x, y, beta=0) * 2),
    (2, 3, 5),
    (2, 3, 4),
    (2, 4, 5),
    covers="baddbmm",
)
case("baddbmm-broadcast", lambda c, x, y: torch.baddbmm(c, x, y.transpose(1, 2)), (1, 5), (2, 3, 4), (2, 5, 4))
case("mv", lambda x, y: (x @ y, x.t() @ x[:, 0]), (2, 3), (3,), covers="mv")
case("dot", lambda x, y: torch.dot(x, y), (3,), (3,), covers="dot")
case("outer", torch.outer, (2,), (3,))
case(
    "einsum", lambda x, y: (torch.einsum("bij,bkj->bik", x, y), torch.einsum("bij,bkj->b", x, y)), (2, 3, 4), (2, 5, 4)
)
case("einsum-heads", lambda x, y: torch.einsum("bqhd,bkhd->bhqk", x, y), (2, 3, 2, 4), (2, 5, 2, 4))
case("einsum-diagonal", lambda x: torch.einsum("ii->i", x) * 2, (3, 3))
case("tensordot", lambda x, y: torch.tensordot(x, y, ([1], [0])), (2, 3), (3, 4))

group("convolution")
case("conv1d", F.conv1d, (2, 3, 7), (4, 3, 3), (4,), covers="convolution convolution_backward")
case("conv1d-options", lambda x, w: F.conv1d(x, w, stride=2, padding=2, dilation=2), (2, 3, 9), (4, 3, 3))
case("conv1d-depthwise", lambda x, w, c: F.conv1d(x, w, c, padding=2, groups=4), (2, 4, 7), (4, 1, 3), (4,))
case("conv1d-groups", lambda x, w, c: F.conv1d(x, w, c, groups=2), (2, 4, 7), (6, 2, 3), (6,))
case("conv1d-same", lambda x, w: F.conv1d(x, w, padding="same"), (2, 3, 7), (4, 3, 3))
case("conv1d-transposed-input", lambda x, w: F.conv1d(x.transpose(1, 2), w), (2, 7, 3), (4, 3, 2))
case("conv2d", F.conv2d, (2, 3, 6, 5), (4, 3, 3, 2), (4,))
case(
    "conv2d-options",
    lambda x, w, c: F.conv2d(x, w, c, stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    (2, 3, 7, 8),
    (4, 3, 3, 2),
    (4,),
)
case(
    "conv2d-patches",
    lambda x, w, c: F.conv2d(x, w, c, stride=2).flatten(2).transpose(1, 2),
    (2, 3, 4, 4),
    (5, 3, 2, 2),
    (5,),
)
case("conv2d-no-bias", lambda x, w: F.conv2d(x, w, padding=1), (2, 3, 4, 4), (4, 3, 3, 3))
case("conv2d-depthwise", lambda x, w, c: F.conv2d(x, w, c, padding=1, groups=3), (2, 3, 5, 5), (3, 1, 3, 3), (3,))
case("conv2d-groups", lambda x, w: F.conv2d(x, w, padding=1, groups=2, stride=2), (2, 4, 6, 6), (6, 2, 3, 3))
case("conv2d-depth-multiplier", lambda x, w: F.conv2d(x, w, padding=1, groups=3), (2, 3, 5, 5), (6, 1, 3, 3))
case("conv2d-uneven-stride", lambda x, w: F.conv2d(x, w, stride=3), (1, 2, 8, 9), (3, 2, 2, 2))
case("conv2d-frozen-input", lambda w, x: F.conv2d(x, w), (4, 3, 2, 2), data=(normal(2, 3, 4, 4),))
case(
    "conv-transpose1d",
    lambda x, w, c: F.conv_transpose1d(x, w, c, stride=2, padding=1, output_padding=1),
    (2, 4, 5),
    (4, 3, 3),
    (3,),
)
case("conv-transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 4, 3, 3), (4, 3, 2, 2))
case(
    "avg-pool",
    lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2, padding=1) * 2),
    (2, 3, 4, 6),
    covers="avg_pool2d avg_pool2d_backward",
)
case(
    "avg-pool-options",
    lambda x: (
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x, 2, divisor_override=3),
        F.avg_pool2d(x, 2, ceil_mode=True) * 2,
        F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True),
    ),
    (2, 3, 5, 7),
)
case(
    "avg-pool1d",
    lambda x: (F.avg_pool1d(x, 2), F.avg_pool1d(x, 3, stride=1, padding=1, count_include_pad=False) * 2),
    (2, 3, 6),
)
case("max-pool", lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, stride=2, padding=1) * 2), apart(2, 3, 4, 6))
case("max-pool1d", lambda x: F.max_pool1d(x, 2), apart(2, 3, 6))
case("adaptive-pool", lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 2) * 2), (2, 3, 4, 6))
case(
    "adaptive-pool1d",
    lambda x: (F.adaptive_avg_pool1d(x, 1), F.adaptive_avg_pool1d(x, 3) * 2),
    (2, 3, 7),
    covers="_adaptive_avg_pool2d_backward",
)
case("interpolate-nearest", lambda x: F.interpolate(x, scale_factor=2) * 2, (1, 2, 3, 3))
case(
    "interpolate-bilinear",
    lambda x: (
        F.interpolate(x, size=(5, 4), mode="bilinear"),
        F.interpolate(x, size=(6, 6), mode="bilinear", align_corners=True) * 2,
    ),
    (1, 2, 3, 3),
)
case("interpolate-bicubic", lambda x: F.interpolate(x, size=(4, 4), mode="bicubic") * 2, (1, 2, 3, 3))

# -- normalization -----------------------------------------------------------------------------------------------

group("normalization")
case(
    "layer-norm",
    lambda x, w, c: F.layer_norm(x, (4,), w, c),
    (2, 3, 4),
    (4,),
    (4,),
    covers="native_layer_norm native_layer_norm_backward",
)
case("layer-norm-plain", lambda x: F.layer_norm(x, (4,)), (2, 3, 4))
case("layer-norm-no-bias", lambda x, w: F.layer_norm(x, (4,), w, eps=1e-2), (2, 3, 4), (4,))
case("layer-norm-two-dims", lambda x, w, c: F.layer_norm(x, (3, 4), w, c), (2, 3, 4), (3, 4), (3, 4))
case("layer-norm-all-dims", lambda x, w, c: F.layer_norm(x, (3, 4), w, c), (3, 4), (3, 4), (3, 4))
case("layer-norm-transposed", lambda x, w, c: F.layer_norm(x.transpose(1, 2), (3,), w, c) * 2, (2, 3, 4), (3,), (3,))
case("layer-norm-frozen", lambda x, w, c: F.layer_norm(x, (4,), w, c), (2, 3, 4), data=(uniform(4), normal(4)))
case("layer-norm-frozen-input", lambda w, c, x: F.layer_norm(x, (4,), w, c), (4,), (4,), data=(normal(2, 3, 4),))
case("rms-norm", lambda x, w: F.rms_norm(x, (4,), w, eps=1e-6), (2, 3, 4), (4,))
case("t5-norm", lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)), (2, 3, 4), (4,))


def _batch_norm(training: bool, momentum: float = 0.1) -> Callable[..., torch.Tensor]:
    def function(x: Any, w: Any, c: Any, mean: Any, variance: Any) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, w, c, training, momentum)

    return function


case(
    "batch-norm-train",
    _batch_norm(True),
    (4, 3, 2, 2),
    (3,),
    (3,),
    buffers=(normal(3), uniform(3)),
    covers="_native_batch_norm_legit_functional native_batch_norm_backward",
)
case("batch-norm-train-1d", _batch_norm(True, 0.3), (5, 3), (3,), (3,), buffers=(normal(3), uniform(3)))
case("batch-norm-train-3d", _batch_norm(True), (4, 3, 5), (3,), (3,), buffers=(normal(3), uniform(3)))
case(
    "batch-norm-eval",
    _batch_norm(False),
    (4, 3, 2, 2),
    (3,),
    (3,),
    buffers=(normal(3), uniform(3)),
    covers="_native_batch_norm_legit_no_training",
)
case(
    "batch-norm-plain", lambda x, m, v: F.batch_norm(x, m, v, training=True), (4, 3, 2), buffers=(normal(3), uniform(3))
)
case("batch-norm-no-statistics", lambda x: F.batch_norm(x, None, None, training=True), (4, 3, 2))
case("instance-norm", lambda x, w, c: F.instance_norm(x, weight=w, bias=c), (2, 3, 5), (3,), (3,))
case("group-norm", lambda x, w, c: F.group_norm(x, 2, w, c), (2, 4, 3), (4,), (4,), covers="native_group_norm")
case("group-norm-plain", lambda x: F.group_norm(x, 4), (2, 4, 3, 3))
case("group-norm-one-group", lambda x, w, c: F.group_norm(x, 1, w, c), (2, 4, 3), (4,), (4,))

# -- losses ------------------------------------------------------------------------------------------------------

group("losses")
LABELS = torch.tensor([1, 0, -100, 4, 1, -100])
case(
    "nll",
    lambda x, t: F.nll_loss(x.log_softmax(-1), t),
    (6, 5),
    data=(LABELS,),
    covers="nll_loss_forward nll_loss_backward",
)
for reduction in ("none", "mean", "sum"):
    case(
        f"cross-entropy-{reduction}",
        lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r),
        (6, 5),
        data=(LABELS,),
    )
    case(
        f"cross-entropy-weights-{reduction}",
        lambda x, t, w, r=reduction: F.cross_entropy(x, t, w, reduction=r),
        (6, 5),
        data=(LABELS, uniform(5)),
    )
    case(
        f"cross-entropy-smoothing-{reduction}",
        lambda x, t, w, r=reduction: F.cross_entropy(x, t, w, reduction=r, label_smoothing=0.1),
        (6, 5),
        data=(LABELS, uniform(5)),
    )
case(
    "cross-entropy-ignore-index",
    lambda x, t: F.cross_entropy(x, t, ignore_index=0),
    (6, 5),
    data=(LABELS.clamp(min=0),),
)
case(
    "cross-entropy-all-ignored",
    lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    (2, 5),
    data=(torch.tensor([-100, -100]),),
)
case("cross-entropy-none-left", lambda x, t: F.cross_entropy(x, t), data=(normal(2, 5), torch.tensor([-100, -100])))
case("cross-entropy-one", F.cross_entropy, (5,), data=(torch.tensor(3),))
case("cross-entropy-probabilities", lambda x, t: F.cross_entropy(x, t.softmax(-1)), (6, 5), data=(normal(6, 5),))
case(
    "cross-entropy-image",
    lambda x, t: F.cross_entropy(x, t, ignore_index=3),
    (2, 4, 3, 3),
    data=(integers(4, 2, 3, 3),),
)
case(
    "cross-entropy-shifted",
    lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 5), t[:, 1:].reshape(-1)),
    (2, 4, 5),
    data=(integers(5, 2, 4),),
)
case(
    "cross-entropy-trained-weights",
    lambda x, w, t: F.cross_entropy(x, t, w.detach()),
    (6, 5),
    uniform(5),
    data=(LABELS,),
)
case("bce", lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), (3, 4), data=(flags(3, 4).float(),))
case(
    "bce-logits",
    lambda x, t, w: (
        F.binary_cross_entropy_with_logits(x, t),
        F.binary_cross_entropy_with_logits(x, t, w, pos_weight=w, reduction="sum"),
    ),
    (3, 4),
    data=(flags(3, 4).float(), uniform(4)),
)
case(
    "mse",
    lambda x, y: (F.mse_loss(x, y), F.mse_loss(x, y, reduction="sum"), F.mse_loss(x, y, reduction="none")),
    (3, 4),
    (3, 4),
)
case(
    "l1",
    lambda x, y: (F.l1_loss(x, y), F.smooth_l1_loss(x, y, beta=0.5), F.huber_loss(x, y, delta=0.7)),
    (3, 4),
    (3, 4),
)
case(
    "kl",
    lambda x, y: (
        F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True),
    ),
    (3, 4),
    (3, 4),
    forward=3e-5,
)
case(
    "margins",
    lambda x, y, z, t: (
        F.margin_ranking_loss(x, y, t, margin=0.1),
        F.cosine_embedding_loss(x[None], y[None], t[:1]),
        F.triplet_margin_loss(x, y, z),
    ),
    (4,),
    (4,),
    (4,),
    data=(torch.tensor([1.0, -1.0, 1.0, 1.0]),),
)
case("poisson", lambda x, t: F.poisson_nll_loss(x, t), (3, 4), data=(uniform(3, 4),))

# -- look-ups ----------------------------------------------------------------------------------------------------

group("indexing")
case(
    "embedding",
    lambda w, i: F.embedding(i, w),
    (5, 3),
    data=(integers(5, 2, 4),),
    covers="embedding embedding_dense_backward",
)
case(
    "embedding-padding",
    lambda w, i: F.embedding(i, w, padding_idx=0),
    (5, 3),
    data=(torch.tensor([[0, 1, 1], [4, 0, 2]]),),
)
case(
    "embedding-negative-padding",
    lambda w, i: F.embedding(i, w, padding_idx=-1),
    (5, 3),
    data=(torch.tensor([4, 1, 1]),),
)
case("embedding-one", lambda w, i: F.embedding(i, w), (5, 3), data=(torch.tensor(2),))
case("embedding-int32", lambda w, i: F.embedding(i, w), (5, 3), data=(torch.tensor([2, 0, 2], dtype=torch.int32),))
case(
    "embedding-positions",
    lambda w, i: F.embedding(torch.arange(4)[None], w).expand(2, 4, 3) + i[..., None],
    (5, 3),
    data=(integers(5, 2, 4),),
)
case("embedding-tied", lambda w, i: F.embedding(i, w) @ w.t(), (5, 3), data=(integers(5, 2, 4),))
case("one-hot", lambda x, i: F.one_hot(i, 4) * x, (4,), data=(integers(4, 3),))
case(
    "gather",
    lambda x, i: (x.gather(1, i), x.gather(-1, i) * 2, x.gather(0, i % 3)),
    (3, 4),
    data=(integers(4, 3, 2),),
    covers="gather",
)
case(
    "gather-expanded",
    lambda x, i: x.gather(1, i[:, None, None].expand(-1, 1, 3)) * 2,
    (2, 4, 3),
    data=(integers(4, 2),),
)
case(
    "index-select",
    lambda x, i: (x.index_select(0, i), x.index_select(-1, i) * 2),
    (3, 4),
    data=(torch.tensor([2, 0, 2]),),
    covers="index_select",
)
case(
    "scatter",
    lambda x, y, i: (x.scatter(1, i, y), x.scatter(0, i.t() % 3, y.t())),
    (3, 4),
    (3, 2),
    data=(torch.tensor([[0, 2], [1, 3], [3, 0]]),),
    covers="scatter.src",
)
case(
    "scatter-value",
    lambda x, i: x.scatter(-1, i, 1.5) * 2,
    (3, 4),
    data=(torch.tensor([[0], [3], [1]]),),
    covers="scatter.value",
)
case(
    "scatter-larger-source",
    lambda x, y, i: x.scatter(1, i, y) + x.scatter_add(1, i, y),
    data=(normal(3, 4), normal(3, 5), torch.tensor([[0, 2], [1, 3], [3, 0]])),
)
case(
    "scatter-add",
    lambda x, y, i: x.scatter_add(1, i, y),
    (3, 4),
    (3, 4),
    data=(integers(4, 3, 4),),
    covers="scatter_add",
)
case("scatter-flags", lambda m, i: m.scatter(1, i, True), data=(flags(3, 4), torch.tensor([[0], [3], [1]])))
case(
    "index",
    lambda x, i: (x[i], x[i][..., 0] * 2),
    (4, 3),
    data=(torch.tensor([[1, -1], [0, 1]]),),
    covers="index.Tensor index_put",
)
case("index-last", lambda x, i: (x[:, i], x[..., i] * 2), (2, 4, 3), data=(torch.tensor([2, 0]),))
case("index-pair", lambda x, i, j: x[i, j], (4, 3, 2), data=(torch.tensor([3, 0, 0]), torch.tensor([-1, 1, 1])))
case(
    "index-pair-broadcast",
    lambda x, i, j: x[i[:, None], j],
    (4, 3, 2),
    data=(torch.tensor([3, 0]), torch.tensor([2, 1, 1])),
)
case("index-middle", lambda x, i, j: x[:, i, j], (2, 4, 3, 2), data=(torch.tensor([3, 0]), torch.tensor([2, 1])))
case("index-middle-matrix", lambda x, i: x[:, i] * 2, (2, 4, 3), data=(integers(4, 2, 2),))
case("index-apart", lambda x, i, j: x[i, :, j] * 2, (4, 3, 5), data=(torch.tensor([3, 0]), torch.tensor([2, 1])))
case(
    "index-apart-middle",
    lambda x, i, j: x[:, i, :, j] * 2,
    (2, 4, 3, 5),
    data=(torch.tensor([3, 0]), torch.tensor([2, 1])),
)
case("index-last-token", lambda x, i: x[torch.arange(2), i] * 2, (2, 4, 3), data=(torch.tensor([3, 1]),))
case("index-integers", lambda i, j: (i[j], i[:, None][j]), data=(integers(9, 4), torch.tensor([3, 1])))
case("index-flags", lambda m, j: m[:, j], data=(flags(3, 4), torch.tensor([3, 1])))
case("index-transposed", lambda x, i: x.t()[i] * 2, (3, 4), data=(torch.tensor([3, 1]),))
case(
    "index-put",
    lambda x, y, i: (x.index_put((i,), y), x.index_put((i,), y, accumulate=True)),
    (4, 3),
    (2, 3),
    data=(torch.tensor([3, -4]),),
    covers="index_put",
)
case(
    "index-put-equal",
    lambda x, y, i: x.index_put((i,), y, accumulate=True),
    (4, 3),
    (3,),
    data=(torch.tensor([3, 0, 3]),),
)
case(
    "index-put-pair",
    lambda x, y, i, j: x.index_put((i, j), y) * 2,
    (4, 3, 2),
    (2, 2),
    data=(torch.tensor([3, 0]), torch.tensor([-1, 1])),
)
case(
    "index-put-middle",
    lambda x, y, i: _assign(x, (slice(None), i), y) * 2,
    (2, 4, 3),
    (2, 2, 3),
    data=(torch.tensor([3, 1]),),
)
case(
    "index-put-middle-number",
    lambda x, i: _assign(x, (slice(None), i), 1.5) * 2,
    (2, 4, 3),
    data=(torch.tensor([3, 1]),),
)
case("index-put-last", lambda x, y, i: _assign(x, (..., i), y) * 2, (2, 3, 4), (2, 3, 2), data=(torch.tensor([3, 1]),))
case(
    "index-put-apart",
    lambda x, y, i, j: _assign(x, (i, slice(None), j), y) * 2,
    (4, 3, 5),
    (2, 3),
    data=(torch.tensor([3, 0]), torch.tensor([2, 1])),
)
case("index-put-integers", lambda i, j: i.index_put((j,), torch.tensor(7)), data=(integers(9, 4), torch.tensor([3, 1])))
case(
    "unsafe-index-put",
    lambda x, y, i: aten._unsafe_index_put(x, (i,), y, True) * 2,
    (4, 3),
    (2, 3),
    data=(torch.tensor([3, 0]),),
    covers="_unsafe_index_put",
)
case(
    "index-add",
    lambda x, y, i: (x.index_add(0, i, y), x.index_add(1, i, y.t()[:, :3].expand(4, 3), alpha=2)),
    (4, 4),
    (3, 4),
    data=(torch.tensor([2, 0, 2]),),
)
case(
    "index-copy-fill",
    lambda x, y, i: (x.index_copy(0, i, y) * 2, x.index_fill(0, i, 1.5) * 3),
    (4, 3),
    (2, 3),
    data=(torch.tensor([2, 0]),),
)
case("take-along", lambda x: x.take_along_dim(x.argsort(1), 1) * 2, apart(3, 4))
case("triangles", lambda x: (x.triu(), x.tril() * 2, x.triu(1), x.tril(-1) * 3), (2, 3, 4), covers="triu tril")
case("triangles-flags", lambda m: (m.triu(), m.tril(1)), data=(flags(3, 3),))
case(
    "masked-scatter",
    lambda x, y, m: x.masked_scatter(m[..., None], y) * 2,
    (2, 3, 4),
    (3, 4),
    data=(torch.tensor([[True, False, True], [False, True, False]]),),
    covers="masked_scatter masked_scatter_backward",
)
case(
    "masked-scatter-rest",
    lambda x, y, m: x.masked_scatter(m, y) * 2,
    (2, 3),
    (5,),
    data=(torch.tensor([[False, True, True], [False, True, False]]),),
)
case(
    "index-put-mask",
    lambda x, m, n: (
        _assign(x, m, 0.5) * 2,
        _assign(x, n, torch.tensor([1.0, 2.0, 3.0])),
        _assign(x, (slice(None), m[0]), -1.0),
    ),
    (2, 4, 3),
    data=(torch.tensor([[True, False, True, False], [False] * 4]), torch.tensor([True, False])),
)
case(
    "index-put-mask-whole",
    lambda x, i: (_assign(x, x > 0, 0.0) * 2, _assign(i, i == 3, -100)),
    (2, 4),
    data=(integers(5, 3, 4),),
)
case("bucketize", lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.0, 1.0])), data=(normal(3, 4),))
case("isin", lambda i: torch.isin(i, torch.tensor([1, 3])), data=(integers(5, 3, 4),))

# -- attention ---------------------------------------------------------------------------------------------------

group("attention")
SHAPES = ((2, 2, 3, 8), (2, 2, 4, 8), (2, 2, 4, 8))
FUSED = "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"


def _attend(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


case("plain", _attend(), *SHAPES, covers=FUSED)
case("causal", _attend(is_causal=True), (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8))
case("causal-rectangle", _attend(is_causal=True), *SHAPES)
case("scale", _attend(scale=0.3), *SHAPES)
case("float-mask", _attend(), *SHAPES, data=(normal(2, 1, 3, 4),))
case("infinite-mask", _attend(), *SHAPES, data=(CLOSED[:1],))
case("infinite-mask-empty-rows", _attend(), *SHAPES, data=(CLOSED,))
case("lowest-mask", _attend(), *SHAPES, data=(CLOSED[:1].nan_to_num(neginf=torch.finfo(torch.float32).min),))
# Torch's own gradients are wrong here: it keeps the logarithm of the sum, which the lowest number swallows.
case(
    "lowest-mask-empty-rows",
    _attend(),
    data=(
        *(normal(*shape) for shape in SHAPES),
        CLOSED.nan_to_num(neginf=torch.finfo(torch.float32).min),
    ),
)
case("bool-mask", _attend(), *SHAPES, data=(CLOSED[:1] == 0,))
case("bool-mask-empty-rows", _attend(), *SHAPES, data=(CLOSED == 0,))
case("matrix-mask", _attend(), *SHAPES, data=(CLOSED[0, 0] == 0,))
case(
    "padding-mask",
    lambda q, k, v, m: _attend()(q, k, v, m[:, None, None, :].expand(2, 1, 3, 4)),
    *SHAPES,
    data=(torch.tensor([[True, True, False, False], [True, True, True, True]]),),
)
case("full-mask", _attend(), *SHAPES, data=(flags(2, 2, 3, 4) | torch.tensor([True, False, False, False]),))
case(
    "computed-mask",
    lambda q, k, v, m: _attend()(
        q, k, v, (1.0 - m[:, None, None, :].float()).masked_fill(~m[:, None, None, :], -INF).expand(2, 1, 3, 4)
    ),
    *SHAPES,
    data=(torch.tensor([[True, True, False, False], [True, True, True, True]]),),
)
case(
    "transposed-heads",
    lambda q, k, v: _attend()(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2).reshape(2, 3, 16),
    (2, 3, 2, 8),
    (2, 4, 2, 8),
    (2, 4, 2, 8),
)
case(
    "grouped-queries",
    lambda q, k, v: _attend()(q, *(t[:, :, None].expand(2, 2, 2, 4, 8).reshape(2, 4, 4, 8) for t in (k, v))),
    (2, 4, 3, 8),
    (2, 2, 4, 8),
    (2, 2, 4, 8),
)
case("enable-gqa", _attend(enable_gqa=True), (2, 4, 3, 8), (2, 2, 4, 8), (2, 2, 4, 8))
case("three-dims", _attend(), (2, 3, 8), (2, 4, 8), (2, 4, 8))
case("other-value-width", _attend(), (2, 2, 3, 8), (2, 2, 4, 8), (2, 2, 4, 6))
case("trained-mask", _attend(), *SHAPES, (1, 2, 3, 4))
case(
    "trained-mask-infinite", lambda q, k, v, b, m: _attend()(q, k, v, b + m), *SHAPES, (1, 2, 3, 4), data=(CLOSED[:1],)
)
case("trained-mask-empty-rows", lambda q, k, v, b, m: _attend()(q, k, v, b + m), *SHAPES, (1, 2, 3, 4), data=(CLOSED,))
case("shared-mask", lambda q, k, v, m: _attend()(_attend()(q, k, v, m), k, v, m), *SHAPES, data=(CLOSED == 0,))
case("eager", lambda q, k, v, m: (q @ k.transpose(-1, -2) * 0.3 + m).softmax(-1) @ v, *SHAPES, data=(CLOSED[:1],))

# -- large enough for broadcast operands to be repeated on the CPU ------------------------------------------------

group("large")
LARGE = (2, 2, 64, 64)
OPEN = torch.ones(2, 1, 64, 64, dtype=torch.bool).tril()
OPEN[1, :, 1:3] = False
case("row", lambda x, y: (x * y, y - x), LARGE, (64,))
case("column", lambda x, y: (x * y, y - x), LARGE, (2, 2, 64, 1))
case("middle", lambda x, y: (x * y, y - x), LARGE, (2, 1, 64, 1))
case("integers", lambda i, j: (i * j, i == j), data=(integers(9, *LARGE), integers(9, 64)))
case("flags", lambda x, m: (x * m, x.masked_fill(m, 0.0)), LARGE, data=(flags(64),))
case(
    "infinite-row",
    lambda x, m: (x + m).softmax(-1),
    LARGE,
    data=(torch.zeros(64).index_fill(0, torch.arange(9, 40), -INF),),
)
case(
    "infinite-column",
    lambda x, m: (x + m).softmax(-2),
    LARGE,
    data=(torch.zeros(64, 1).index_fill(0, torch.arange(9, 40), -INF),),
)
case("infinite-constant", lambda x: (x + torch.full((64, 64), -INF).triu(1)).softmax(-1), LARGE)
case("softmax", lambda x: (x.softmax(-1), x.log_softmax(-1)), LARGE)
case("linear", lambda x, w, c: F.linear(x, w, c), (2, 128, 64), (80, 64), (80,))
case("layer-norm", lambda x, w, c: F.layer_norm(x, (64,), w, c), (2, 128, 64), (64,), (64,))
case("layer-norm-two-dims", lambda x: F.layer_norm(x, (128, 64)), (2, 128, 64))
case("batch-norm", _batch_norm(True), (4, 3, 40, 40), (3,), (3,), buffers=(normal(3), uniform(3)))
case("cross-entropy", lambda x, t: F.cross_entropy(x, t), (128, 200), data=(integers(200, 128),))
case(
    "cross-entropy-weights",
    lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1, reduction="sum"),
    (128, 200),
    data=(integers(200, 128), uniform(200)),
)
case("attention-causal", _attend(is_causal=True), (2, 2, 64, 8), (2, 2, 64, 8), (2, 2, 64, 8))
for name, mask in (
    ("bool", OPEN),
    ("matrix", OPEN[0, 0]),
    ("row", OPEN[:, :, -1:]),
    ("infinite", torch.zeros(2, 1, 64, 64).masked_fill(~OPEN, -INF)),
    ("infinite-row", torch.zeros(1, 1, 1, 64).index_fill(3, torch.arange(9, 40), -INF)),
):
    case(f"attention-{name}", _attend(), (2, 2, 64, 8), (2, 2, 64, 8), (2, 2, 64, 8), data=(mask,))
