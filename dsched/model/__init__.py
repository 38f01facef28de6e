"""The nouns of dsched: jobs, runs, tasks with their transition table, attempts, workers, ids. Pure."""
