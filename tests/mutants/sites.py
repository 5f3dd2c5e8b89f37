"""Where the code can be broken on purpose, and how: each site is one small fault that a tired engineer might write.

    drop-sync     a sync that is not asked for
    drop-call     an effect that is left out
    drop-store    state that is not updated
    swap          two effects in the wrong order, the first of which somebody else can see
    skip-check    a condition that refuses or passes over, taken for false
    off-by-one    `<` for `<=`, `n` for `n + 1`
    invert        `and` for `or`, a `not` that is missing, `min` for `max`

Sites come from the syntax tree, so that they are found anew after the code was rebuilt.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

SYNCS = {"datasync", "sync", "sync_folder", "sync_files", "_sync_segments", "_sync_journal", "flush_wal"}
SEEN = {
    *(
        "write",
        "pwrite",
        "pwritev",
        "write_at",
        "rename",
        "replace",
        "remove",
        "remove_tree",
        "truncate",
        "link",
        "lock",
    ),
    *(
        "commit",
        "enqueue",
        "submit",
        "finish",
        "wait",
        "checkpoint",
        "send",
        "settle",
        "set",
        "flush",
        "tell",
        "notice",
    ),
}
"""Calls that a disk, another thread or a client can see: where one of them stands matters."""
QUIET = {"debug", "info", "warning", "error", "critical", "exception", "log"}
"""Calls that tell people something; what they say is not what is promised here."""
EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


class Site(NamedTuple):
    """One place, and what would be wrong there."""

    kind: str
    function: str
    line: int
    before: str
    after: str
    apply: Callable[[], None]
    """Breaks the tree that the site was found in."""


def sites(tree: ast.Module) -> Iterator[Site]:
    """Every place of a module that can be broken, in order."""
    for function, body in _functions(tree, ""):
        own = _own(body, [])
        for statements in _blocks([body, *own]):
            yield from _statements(function, statements)
        for node in own:
            if isinstance(node, BREAKABLE):
                yield from _expressions(function, node)


def _functions(node: ast.AST, above: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{above}{child.name}"
            if child.name not in ("__repr__", "__str__", "__del__"):
                yield name, child
            yield from _functions(child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{above}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from _functions(child, above)


def _own(function: ast.AST, found: list[ast.AST]) -> list[ast.AST]:
    """What stands in a function, without the functions within it, its signature, and what it tells people."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arguments | ast.Raise):
            continue
        if isinstance(child, ast.Assert) or (isinstance(child, ast.Expr) and _is_quiet(child)):
            continue
        found.append(child)
        _own(child, found)
    return found


def _blocks(nodes: list[ast.AST]) -> Iterator[list[ast.stmt]]:
    for node in nodes:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or tells people something."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if not isinstance(value, ast.Call):
        return not isinstance(value, ast.Await | ast.Yield | ast.YieldFrom)
    return isinstance(value.func, ast.Attribute) and value.func.attr in QUIET


def _called(statement: ast.stmt) -> str | None:
    """The name of what a statement calls, if it is a call and no more."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    if not isinstance(value, ast.Call) or _is_quiet(statement):
        return None
    return value.func.attr if isinstance(value.func, ast.Attribute) else ast.unparse(value.func)


def _is_store(statement: ast.stmt) -> bool:
    """Whether a statement changes something that outlives the function."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    else:
        return False
    return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _statements(function: str, block: list[ast.stmt]) -> Iterator[Site]:
    for place, statement in enumerate(block):
        called = _called(statement)
        if called is not None and called != "super().__init__":
            kind = "drop-sync" if called in SYNCS else "drop-call"
            yield Site(kind, function, statement.lineno, _text(statement), "pass", _replaced(block, place, ast.Pass()))
        if _is_store(statement) and not function.endswith("__init__"):
            yield Site(
                "drop-store", function, statement.lineno, _text(statement), "pass", _replaced(block, place, ast.Pass())
            )
        following = block[place + 1] if place + 1 < len(block) else None
        if following is not None and called in SYNCS | SEEN and _called(following) is not None:
            both = f"{_text(statement)}; {_text(following)}"
            yield Site("swap", function, statement.lineno, both, "the other way round", _swapped(block, place))
        if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
            yield Site(
                "skip-check",
                function,
                statement.lineno,
                f"if {_text(statement.test)}: {_text(statement.body[-1])}",
                "if False",
                _set(statement, "test", ast.Constant(value=False)),
            )


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a block refuses or passes over; one that answers at once is a shortcut more often than not."""
    last = body[-1]
    if isinstance(last, ast.Return):
        return last.value is None or isinstance(last.value, ast.Constant)
    return isinstance(last, ast.Raise | ast.Continue | ast.Break)


BREAKABLE = (ast.Compare, ast.BinOp, ast.BoolOp, ast.If, ast.IfExp, ast.Call)
"""Where `_expressions` looks for something."""


def _expressions(function: str, node: ast.AST) -> Iterator[Site]:
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in EDGES:
        other = EDGES[type(node.ops[0])]()
        after = ast.Compare(left=node.left, ops=[other], comparators=node.comparators)
        yield Site("off-by-one", function, line, _text(node), _text(after), _set(node, "ops", [other]))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_one(node.right):
        yield Site("off-by-one", function, line, _text(node), _text(node.left), _set(node, "right", _zero()))
    if isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        after_op = ast.BoolOp(op=other_op, values=node.values)
        yield Site("invert", function, line, _text(node), _text(after_op), _set(node, "op", other_op))
    if (
        isinstance(node, ast.If | ast.IfExp)
        and isinstance(node.test, ast.UnaryOp)
        and isinstance(node.test.op, ast.Not)
    ):
        yield Site(
            "invert",
            function,
            line,
            f"if {_text(node.test)}",
            f"if {_text(node.test.operand)}",
            _set(node, "test", node.test.operand),
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        name = "max" if node.func.id == "min" else "min"
        yield Site("invert", function, line, _text(node), f"{name}(…)", _set(node.func, "id", name))


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and type(node.value) is int


def _zero() -> ast.Constant:
    return ast.Constant(value=0)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _set(node: ast.AST, field: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, field, value)


def _replaced(block: list[ast.stmt], place: int, statement: ast.stmt) -> Callable[[], None]:
    def apply() -> None:
        block[place] = statement

    return apply


def _swapped(block: list[ast.stmt], place: int) -> Callable[[], None]:
    def apply() -> None:
        block[place], block[place + 1] = block[place + 1], block[place]

    return apply
