"""Find the handlers that `--jobs MODULE[:ATTR]` names."""

import importlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import dsched
from dsched.errors import ConfigError
from dsched.jobs import JobDeclaration, declaration_of

__all__ = ["HandlerRegistry", "load_handlers"]

_PACKAGE = os.path.join(os.path.dirname(dsched.__file__), "")
_SPEC = re.compile(r"(?P<module>.+?)(?::(?P<attribute>[^:/\\]*))?\Z", re.DOTALL)


class HandlerRegistry:
    """The handlers that a worker offers, by name."""

    def __init__(self, declarations: Iterable[JobDeclaration] = ()) -> None:
        self._by_handler: dict[str, JobDeclaration] = {}
        for declaration in declarations:
            clash = self.add(declaration)
            if clash is not None:
                raise ConfigError(clash)

    @property
    def names(self) -> list[str]:
        """Return the names that the worker offers, sorted."""
        return sorted(self._by_handler)

    @property
    def declarations(self) -> list[JobDeclaration]:
        """Return the declarations behind them, sorted by handler."""
        return [self._by_handler[name] for name in self.names]

    def get(self, handler: str) -> JobDeclaration | None:
        """Return the declaration whose function answers to `handler`."""
        return self._by_handler.get(handler)

    def add(self, declaration: JobDeclaration) -> str | None:
        """Add one; return why it cannot be, if another function has its name. The same one twice is no clash."""
        before = self._by_handler.setdefault(declaration.handler, declaration)
        if before.function is declaration.function:
            return None
        return f"handler {declaration.handler!r} is offered by {_where(before)} and by {_where(declaration)}"

    def __len__(self) -> int:
        return len(self._by_handler)


def load_handlers(specs: Iterable[str]) -> HandlerRegistry:
    """Import what each `MODULE[:ATTR]` names and return the handlers found there.

    MODULE is a dotted name, importable from the current directory too, or a path that ends in `.py`. ATTR is a
    decorated function or a collection of such; without it, every decorated function of the module counts. Raises
    `ConfigError` that names all problems, each with its module.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    registry = HandlerRegistry()
    problems: list[str] = []
    for spec in specs:
        try:
            for declaration in _find(spec):
                clash = registry.add(declaration)
                if clash is not None:
                    problems.append(f"--jobs {spec}: {clash}")
        except _Unusable as error:
            problems.append(f"--jobs {spec}: {error}")
    if problems:
        raise ConfigError(*problems)
    return registry


class _Unusable(Exception):
    """Why one spec cannot be used."""


def _find(spec: str) -> list[JobDeclaration]:
    match = _SPEC.match(spec.strip())
    if match is None:
        raise _Unusable("is empty, must be MODULE or MODULE:ATTR")
    module = _import(match["module"])
    attribute = match["attribute"]
    if attribute is None:
        found = [declaration for value in vars(module).values() if (declaration := declaration_of(value))]
        if not found:
            raise _Unusable(f"no jobs in {module.__name__}: no function there is decorated with @job")
        return found
    value: Any = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise _Unusable(f"{module.__name__} has no attribute {attribute!r}") from None
    return list(_declared(value, attribute))


def _declared(value: object, attribute: str) -> Iterator[JobDeclaration]:
    declaration = declaration_of(value)
    if declaration is not None:
        yield declaration
        return
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        raise _Unusable(f"{attribute} ({type(value).__name__}) is not decorated with @job")
    if not value:
        raise _Unusable(f"{attribute} is empty")
    for item in value.values() if isinstance(value, Mapping) else value:
        declaration = declaration_of(item)
        if declaration is None:
            raise _Unusable(f"{attribute} holds {item!r:.80}, which is not decorated with @job")
        yield declaration


def _import(name: str) -> ModuleType:
    try:
        return _import_path(name) if name.endswith(".py") else importlib.import_module(name)
    except _Unusable:
        raise
    except SyntaxError as error:
        raise _Unusable(f"syntax error in {error.filename}, line {error.lineno}: {error.msg}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _Unusable(f"there is no module {error.name!r} here or on sys.path") from None
        raise _Unusable(f"imports {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:  # Whatever a module does when it is imported.
        raise _Unusable(f"cannot be imported: {type(error).__name__}: {error}{_line_of(error)}") from error


def _import_path(name: str) -> ModuleType:
    path = Path(name).resolve()
    if not path.is_file():
        raise _Unusable(f"there is no file {path}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # Its neighbours are importable as if it had been started as a program.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module_name = path.stem if known is None else f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise _Unusable(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _line_of(error: BaseException) -> str:
    """Return where in the user's files an import failed: the last frame outside the import machinery and dsched."""
    where = inside = ""
    step = error.__traceback__
    while step is not None:
        filename = step.tb_frame.f_code.co_filename
        place = f" ({filename}, line {step.tb_lineno})"
        if filename.startswith(_PACKAGE):
            inside = place
        elif not filename.startswith("<frozen"):
            where = place
        step = step.tb_next
    return where or inside


def _where(declaration: JobDeclaration) -> str:
    function = declaration.function
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name}"
