"""The last line of defence of an operator: whatever a damaged model sets off inside becomes an HOperatorError."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from .errors import HError, HOperatorError

P = ParamSpec("P")
R = TypeVar("R")

_DEBUG: Final = "DLPRUNE_DEBUG"


def guarded(code: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let an operator raise HOperatorError `code` in place of any exception that is no HError.

    ONNX's checker passes files that no runtime accepts: a weight whose kernels are not divisible into its groups, an
    expression that asks for more memory than there is. Each step of the analysis relies on a sound model; where one is
    not, whatever falls over first is reported here, with the original exception as its cause. Where the environment
    variable DLPRUNE_DEBUG is set, the original exception passes instead, for those who look for a fault in dlprune.

    Example:
        >>> from dlprune.errors import H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED
        >>> @guarded(H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED)
        ... def half(kernels: int) -> float:
        ...     return kernels / 0
        >>> half(8)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        dlprune.errors.HOperatorError: The operator does not support this model: half failed: ZeroDivisionError: ...
    """

    def guard(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except HError:
                raise
            except Exception as error:
                if os.environ.get(_DEBUG):
                    raise
                if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                    raise  # the call itself is wrong: a parameter is missing or unknown
                text = " ".join(str(error).split())[:400]
                raise HOperatorError(
                    code,
                    f"{function.__name__} failed: {type(error).__name__}: {text}. Most likely the model is damaged or "
                    f"asks for too much memory; nothing was changed. With {_DEBUG}=1 in the environment the cause "
                    "itself is shown.",
                ) from error

        return inner

    return guard
