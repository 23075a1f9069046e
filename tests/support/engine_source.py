"""The released source of engines that cannot run here, read with ast: what they call and with what.

``make adapters`` puts single files of the released packages into build/adapters; nothing of them is imported.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "adapters"


@cache
def parsed(path: str) -> ast.Module:
    """A file of a released package, its path as in the package."""
    file = FOLDER / path
    if not file.is_file():
        pytest.fail(f"{file} is not there; run: make adapters")
    return ast.parse(file.read_text(encoding="utf-8"))


def class_of(path: str, name: str) -> ast.ClassDef:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise AssertionError(f"{path} has no class {name} any more")


def function_of(where: ast.AST, name: str) -> ast.FunctionDef:
    for node in ast.walk(where):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise AssertionError(f"there is no function {name} any more")


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names of a function's parameters, those that have a default with it, ``self`` left out."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    named = [
        parameter.arg + ("" if default is None else f"={ast.unparse(default)}")
        for parameter, default in zip(positional, defaults, strict=True)
    ]
    named += [
        parameter.arg + ("" if default is None else f"={ast.unparse(default)}")
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [name for name in named if name not in ("self", "cls")]


def fields(where: ast.ClassDef) -> set[str]:
    """Names that a class declares, methods and properties included."""
    names = set()
    for node in where.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def calls(where: ast.AST, method: str, on: str) -> Iterator[ast.Call]:
    """Calls of ``method`` on something that is spelled with ``on`` at its end, e.g. "self.drafter"."""
    for node in ast.walk(where):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            spelled = ast.unparse(node.func.value)
            if spelled.endswith(on) or on in spelled.split("(")[-1]:
                yield node


def methods_called(where: ast.AST, on: str) -> set[str]:
    """Names of the methods that are called on ``on``."""
    return {
        node.func.attr
        for node in ast.walk(where)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == on
    }


def must_take(function: Callable[..., Any], call: ast.Call) -> list[str]:
    """AssertionError unless ours can be called like that; the names its arguments get."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(
            *call.args, **{keyword.arg or "**": keyword.value for keyword in call.keywords}
        )
    except TypeError as error:
        raise AssertionError(
            f"it is called as {ast.unparse(call)}, and ours does not take that: {error}"
        ) from None
    return [
        f"{name}={ast.unparse(value) if isinstance(value, ast.AST) else value}"
        for name, value in bound.arguments.items()
    ]
