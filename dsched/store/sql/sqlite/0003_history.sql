-- Ended tasks by hour (its first millisecond), job and status. Nothing wrote to the table before, so it is made anew with
-- the hour first: that is how it is read, and how it ages.
DROP TABLE rollup;

CREATE TABLE rollup (
  hour INTEGER NOT NULL,
  job TEXT NOT NULL,
  status TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (hour, job, status)
) WITHOUT ROWID;

-- The ended tasks that people look for, newest first. They are few, so this costs a task that succeeds nothing.
CREATE INDEX schedule_job_failed ON schedule_job (status, job_id)
  WHERE (status = 'FAILED' OR status = 'TIMEOUT' OR status = 'CANCELLED') AND run_id IS NOT NULL;
