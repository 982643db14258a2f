"""The updates as MindSpore runs them. GRAPH mode parses this source: named functions, no closures.

Each takes one parameter, its state, its gradient and the 0-d float32 numbers of its rule. ``scale`` is the clipping
coefficient.
"""

from __future__ import annotations

from openmind_compat.runtime import load_mindspore

load_mindspore()

from mindspore.ops import operations as P  # noqa: E402

_add, _mul, _sub, _assign = P.Add(), P.Mul(), P.Sub(), P.Assign()
_adam_weight_decay = P.AdamWeightDecay()


def adam(parameter, slots, gradient, scale, numbers):
    """Adam, the weight decay taken off the weight itself."""
    gradient = _mul(gradient, _mul(scale, numbers[5]))
    return _adam_weight_decay(
        parameter, slots[0], slots[1], numbers[0], numbers[3], numbers[4], numbers[1], numbers[2], gradient
    )


def adam_l2(parameter, slots, gradient, scale, numbers):
    """Adam, the weight decay added to the gradient."""
    gradient = _add(_mul(gradient, _mul(scale, numbers[5])), _mul(parameter, numbers[2]))
    no_decay = _sub(numbers[2], numbers[2])
    return _adam_weight_decay(
        parameter, slots[0], slots[1], numbers[0], numbers[3], numbers[4], numbers[1], no_decay, gradient
    )


def _decayed(parameter, gradient, scale, numbers):
    return _add(_mul(gradient, _mul(scale, numbers[4])), _mul(parameter, numbers[1]))


def sgd(parameter, slots, gradient, scale, numbers):
    """Gradient descent."""
    return _assign(parameter, _sub(parameter, _mul(_decayed(parameter, gradient, scale, numbers), numbers[0])))


def sgd_momentum(parameter, slots, gradient, scale, numbers):
    """Gradient descent along a running sum of the gradients."""
    gradient = _decayed(parameter, gradient, scale, numbers)
    velocity = _assign(slots[0], _add(_mul(slots[0], numbers[2]), _mul(gradient, numbers[3])))
    return _assign(parameter, _sub(parameter, _mul(velocity, numbers[0])))


def sgd_nesterov(parameter, slots, gradient, scale, numbers):
    """As with momentum, looking one step ahead."""
    gradient = _decayed(parameter, gradient, scale, numbers)
    velocity = _assign(slots[0], _add(_mul(slots[0], numbers[2]), _mul(gradient, numbers[3])))
    ahead = _add(gradient, _mul(velocity, numbers[2]))
    return _assign(parameter, _sub(parameter, _mul(ahead, numbers[0])))
