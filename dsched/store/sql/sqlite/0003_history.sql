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

-- Every status but the usual one, newest first: what people look for. It serves the open tasks too, in the place of the
-- index that had those alone, and costs a task that succeeds no more than that did.
DROP INDEX schedule_job_open;

CREATE INDEX schedule_job_status ON schedule_job (status, job_id, fence)
  WHERE status <> 'SUCCESS' AND run_id IS NOT NULL;
