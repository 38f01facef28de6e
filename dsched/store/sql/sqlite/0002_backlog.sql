-- Runs that wait in the store: created over the bound of what waits in memory, and not yet begun. One row per such run,
-- none for any other. seq is the job_id of its first task, so that it ascends in the order of creation.

CREATE TABLE backlog (
  seq INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  job TEXT NOT NULL,
  group_name TEXT NOT NULL,
  handler TEXT NOT NULL,
  priority INTEGER NOT NULL,
  tasks INTEGER NOT NULL
);

CREATE INDEX backlog_lane ON backlog (group_name, handler, priority, seq);

CREATE INDEX backlog_job ON backlog (job, seq);
