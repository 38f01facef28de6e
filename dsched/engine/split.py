"""Take a refused batch apart, so that the one row that the store cannot hold does not stop the rest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsched.engine.changes import Batch, Effect, Key, job_key, runs_told

__all__ = ["Part", "split"]


@dataclass(slots=True)
class Part:
    """The rows and effects of one key: committed, or refused, together."""

    key: Key
    batch: Batch
    effects: list[Effect] = field(default_factory=list)

    def job_names(self) -> list[str]:
        """Return the jobs whose own rows this part touches."""
        batch = self.batch
        named = [row.name for row in (*batch.jobs_new, *batch.jobs_set)] + [due.name for due in batch.dues]
        return sorted({*named, *batch.jobs_gone})

    def run_ids(self) -> list[str]:
        """Return the runs that this part touches."""
        batch = self.batch
        named = [row.run_id for row in (*batch.runs_new, *batch.runs_set)]
        named += [row.run_id for row in (*batch.tasks_new, *batch.tasks_set)]
        named += [row.task_id.rpartition(":")[0] for row in batch.attempts]
        return sorted(set(named))


def split(batch: Batch, effects: Sequence[Effect], units: Mapping[str, Key]) -> list[Part]:
    """Return the parts of a batch in the order in which their keys appear; each must get its own number.

    `units` maps runs to the key that they share with others; an answer joins the runs that it tells of. Effects
    without a key, which must happen whatever is refused, are the last part, without rows; so they still follow
    everything that they may speak of.
    """
    parts: dict[Key, Part] = {}
    joined = _joined(batch, effects, units)

    def part(key: Key) -> Part:
        key = joined.get(key, key)
        if key not in parts:
            parts[key] = Part(key, Batch(batch.epoch, batch.number, batch.last_id, batch.last_fence))
        return parts[key]

    def of_run(run_id: str | None) -> Key:
        return "no run" if run_id is None else units.get(run_id, run_id)

    def share(name: str, rows: Iterable[Any], key_of: Any) -> None:
        for row in rows:
            getattr(part(key_of(row)).batch, name).append(row)

    for name in ("jobs_new", "jobs_set", "dues"):
        share(name, getattr(batch, name), lambda row: job_key(row.name))
    share("jobs_gone", batch.jobs_gone, job_key)
    for name in ("runs_new", "runs_set", "tasks_new", "tasks_set", "logs", "backlog_new", "backlog_gone"):
        share(name, getattr(batch, name), lambda row: of_run(row.run_id))
    share("attempts", batch.attempts, lambda row: of_run(row.task_id.rpartition(":")[0]))
    share("workers", batch.workers, lambda row: f"worker:{row.worker_id}")
    for effect in effects:
        if effect.key is not None:
            part(units.get(effect.key, effect.key)).effects.append(effect)
    part("").effects += [effect for effect in effects if effect.key is None]
    return list(parts.values())


def _joined(batch: Batch, effects: Sequence[Effect], units: Mapping[str, Key]) -> dict[Key, Key]:
    """Return which keys stand for which, where one answer tells of runs of several."""
    here = {row.run_id for row in (*batch.runs_new, *batch.runs_set)} | {row.run_id for row in batch.tasks_set}
    joined: dict[Key, Key] = {}
    for effect in effects:
        told = sorted(units.get(run_id, run_id) for run_id in runs_told(effect) & here)
        keys = [joined.get(key, key) for key in (effect.key, *told) if key is not None]
        for key in keys[1:]:
            if key != keys[0]:
                joined = {one: keys[0] if other == key else other for one, other in joined.items()}
                joined[key] = keys[0]
    return joined
