"""Count the Python sources below a folder, by default those of the standard library of this interpreter.

Each shard takes the files whose path hashes to its number, so the shards share nothing, and their sums are those of
one pass over everything (`count_directly`).
"""

import ast
import os
import sysconfig
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from dsched import JobContext, job

__all__ = ["census", "count_directly", "count_file", "python_files", "standard_library"]

Counts = dict[str, int]

# Threads that parse at the same time can fail each other in CPython 3.11 ("AST constructor recursion depth mismatch"),
# and filters of warnings belong to the process as well.
PARSING = threading.Lock()

# Packages that others installed; what is below them is not the standard library.
SITE_PACKAGES = frozenset({"site-packages", "dist-packages"})


# What the compiler has to say about the style of the counted files; catch_warnings is not for threads.
warnings.filterwarnings("ignore", module="<unknown>")


def standard_library() -> Path:
    """Return the folder of the standard library of the running interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def python_files(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the `.py` files below `path`, as relative paths with slashes, in a fixed order.

    Raises `NotADirectoryError` when there is no such folder: a count of nothing would look like an answer.
    """
    root = Path(path)
    if not root.is_dir():
        raise NotADirectoryError(f"there is no folder {root}")
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SITE_PACKAGES)
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(folder, name).relative_to(root).as_posix()


def count_file(path: str | os.PathLike[str]) -> Counts:
    """Count the lines, functions and classes of one file; one that is not valid Python counts as `unparsed`."""
    source = Path(path).read_bytes()
    counts = {"files": 1, "lines": len(source.splitlines()), "functions": 0, "classes": 0, "unparsed": 0}
    try:
        with PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        counts["unparsed"] = 1
        return counts
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counts["functions"] += 1
        elif isinstance(node, ast.ClassDef):
            counts["classes"] += 1
    return counts


def shard_of(relative_path: str, sharding_total: int) -> int:
    """Return the shard that a file belongs to: the same on every machine."""
    return zlib.crc32(relative_path.encode("utf-8", "surrogateescape")) % sharding_total


def count_directly(path: str | os.PathLike[str] | None = None) -> Counts:
    """Count everything below `path` in one pass."""
    root = standard_library() if path is None else Path(path)
    totals = nothing()
    for relative in python_files(root):
        add(totals, count_file(root / relative))
    return totals


def nothing() -> Counts:
    return {"files": 0, "lines": 0, "functions": 0, "classes": 0, "unparsed": 0}


def add(totals: Counts, counts: Counts) -> None:
    for name, count in counts.items():
        totals[name] += count


@job("census", sharding_total=10, timeout=60, description="Counts the Python sources below a folder.")
def census(ctx: JobContext) -> Counts:
    """Count this shard's share of `params["path"]`, or of the standard library."""
    params = ctx.params or {}
    root = Path(params["path"]) if "path" in params else standard_library()
    totals = nothing()
    for relative in python_files(root):
        if shard_of(relative, ctx.sharding_total) == ctx.sharding_item:
            ctx.check_cancelled()
            add(totals, count_file(root / relative))
    return totals
