"""Schedule jobs on many machines.

`job` and `JobContext` are what a module of jobs needs. They are loaded at first use, so that importing the package
itself costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsched.jobs import JobContext, job

__all__ = ["JobContext", "__version__", "job"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in ("JobContext", "job"):
        from dsched import jobs

        return getattr(jobs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
