"""The docstrings behind the fields and members of a class, as its source has them."""

import ast
import inspect


def documented_fields(cls: type) -> dict[str, str]:
    """The docstring of each field or member of this class that has a docstring, in one line."""
    tree = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for node, behind in zip(tree.body, tree.body[1:], strict=False):
        name = _name(node)
        if name is not None and isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            docs[name] = " ".join(str(behind.value.value).split())
    return docs


def _name(node: ast.stmt) -> str | None:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
    return next((target.id for target in targets if isinstance(target, ast.Name)), None)
