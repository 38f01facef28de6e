"""Nouns: job, run, task with its transition table, attempt, worker, instants. Pure."""
