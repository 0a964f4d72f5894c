"""Arguments that a function does not know, told of in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from penstock.errors import InvalidInput
from penstock.spelling import nearest

P = ParamSpec("P")
T = TypeVar("T")


def checks_keywords(hint: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A misspelt keyword is an InvalidInput that names the nearest known one."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in known:
                    raise InvalidInput(_unknown(function.__name__, name, known, hint))
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown(function: str, name: str, known: tuple[str, ...], hint: str) -> str:
    near = nearest(name, known)
    meant = f"did you mean {near!r}?" if near else f"it takes {', '.join(known)}."
    return f"{function}() knows no {name!r}; {meant} {hint}"
