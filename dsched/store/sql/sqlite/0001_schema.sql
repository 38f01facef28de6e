-- The whole schema. Instants are integer milliseconds UTC; create_time and update_time are text, for those who query them.
-- Each statement ends with a semicolon at the end of a line. A table schedule_job that is already there is kept: the
-- columns that it lacks are added before this file runs, so a column without a default must not be NOT NULL for old rows.

CREATE TABLE job (
  name TEXT NOT NULL PRIMARY KEY,
  group_name TEXT NOT NULL,
  definition TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  version INTEGER NOT NULL,
  next_due INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
);

CREATE INDEX job_group ON job (group_name, name);

CREATE INDEX job_enabled ON job (enabled, name);

CREATE TABLE run (
  run_id TEXT NOT NULL PRIMARY KEY,
  job TEXT NOT NULL,
  due INTEGER,
  status TEXT NOT NULL,
  reason TEXT,
  cause TEXT NOT NULL,
  request_key TEXT,
  request_hash TEXT,
  parent TEXT,
  workflow_id TEXT,
  group_name TEXT NOT NULL,
  priority INTEGER NOT NULL,
  job_version INTEGER NOT NULL,
  snapshot TEXT NOT NULL,
  params TEXT NOT NULL,
  sharding_total INTEGER NOT NULL,
  cancel_requested INTEGER NOT NULL,
  counts TEXT,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  finished_at INTEGER,
  version INTEGER NOT NULL
);

-- No two leaders fire the same due instant. Requests have no due and are unique by run_id alone.
CREATE UNIQUE INDEX run_due ON run (job, due) WHERE due IS NOT NULL;

CREATE INDEX run_created ON run (created_at, run_id);

CREATE INDEX run_job ON run (job, created_at, run_id);

CREATE INDEX run_group ON run (group_name, created_at, run_id);

-- Also how a starting leader finds the runs that are not terminal.
CREATE INDEX run_status ON run (status, created_at, run_id);

CREATE TABLE IF NOT EXISTS schedule_job (
  job_id INTEGER PRIMARY KEY,
  task_id TEXT NOT NULL UNIQUE,
  job_name TEXT NOT NULL,
  params TEXT NOT NULL,
  sharding_total INTEGER NOT NULL,
  sharding_item INTEGER NOT NULL,
  timeout INTEGER NOT NULL,
  target_worker TEXT,
  status TEXT NOT NULL,
  retry_count INTEGER NOT NULL DEFAULT 0,
  error_msg TEXT,
  create_time TIMESTAMP NOT NULL,
  update_time TIMESTAMP NOT NULL,
  run_id TEXT NOT NULL,
  group_name TEXT NOT NULL DEFAULT 'default',
  priority INTEGER NOT NULL DEFAULT 0,
  incarnation TEXT,
  attempt INTEGER NOT NULL DEFAULT 0,
  lost_count INTEGER NOT NULL DEFAULT 0,
  fence INTEGER NOT NULL DEFAULT 0,
  not_before INTEGER,
  started_at INTEGER,
  deadline INTEGER,
  finished_at INTEGER,
  result TEXT,
  error TEXT,
  version INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX schedule_job_run ON schedule_job (run_id, sharding_item, job_id);

-- Open tasks only, so that nothing which asks for them reads history. An OR chain: IN (...) would build a temporary
-- table at each write, at half the price of the write. Adopted rows have no run and are not in here.
CREATE INDEX schedule_job_open ON schedule_job (status, fence)
  WHERE (status = 'PENDING' OR status = 'DISPATCHED' OR status = 'RUNNING' OR status = 'CANCELLING')
    AND run_id IS NOT NULL;

CREATE TABLE attempt (
  task_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  worker_id TEXT,
  incarnation TEXT,
  fence INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  message TEXT,
  started_at INTEGER,
  finished_at INTEGER NOT NULL,
  PRIMARY KEY (task_id, number)
) WITHOUT ROWID;

CREATE TABLE worker (
  worker_id TEXT NOT NULL PRIMARY KEY,
  incarnation TEXT,
  group_name TEXT NOT NULL,
  host TEXT NOT NULL,
  slots INTEGER NOT NULL,
  weight INTEGER NOT NULL,
  handlers TEXT NOT NULL,
  tags TEXT NOT NULL,
  state TEXT NOT NULL,
  connected_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- One row, always there; epoch 0 until somebody leads.
CREATE TABLE leader (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  epoch INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  renewal INTEGER NOT NULL,
  owner TEXT NOT NULL,
  address TEXT NOT NULL,
  admin_url TEXT NOT NULL,
  last_id INTEGER NOT NULL,
  last_fence INTEGER NOT NULL
);

INSERT INTO leader VALUES (1, 0, 0, 0, '', '', '', 0, 0);

CREATE TABLE log (
  id INTEGER PRIMARY KEY,
  task_id TEXT,
  run_id TEXT,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL,
  worker_id TEXT,
  attempt INTEGER,
  message TEXT NOT NULL
);

CREATE INDEX log_task ON log (task_id, id) WHERE task_id IS NOT NULL;

-- Ended tasks per job, hour (its first millisecond) and status: counters are kept, never counted over history.
CREATE TABLE rollup (
  job TEXT NOT NULL,
  hour INTEGER NOT NULL,
  status TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (job, hour, status)
) WITHOUT ROWID;
