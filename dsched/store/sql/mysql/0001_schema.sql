-- The whole schema. Instants are integer milliseconds UTC; create_time and update_time are TIMESTAMP, for those who query
-- them, and spelled out so that no server setting adds defaults or ON UPDATE. Each statement ends with a semicolon at the
-- end of a line, and is one that can be recognised as done when a migration was cut off after it. A table schedule_job
-- that is already there is kept: what it lacks is added before this file runs.
--
-- utf8mb4_bin everywhere: names differ by case and accents, as in SQLite. Every integer that people or workers can set
-- is BIGINT, so that what is not refused at the door fits.

CREATE TABLE job (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  group_name VARCHAR(64) NOT NULL,
  definition MEDIUMTEXT NOT NULL,
  enabled BIGINT NOT NULL,
  version BIGINT NOT NULL,
  next_due BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  KEY job_group (group_name, name),
  KEY job_enabled (enabled, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- run_due: no two leaders fire the same due instant. Requests have no due, and nulls differ from each other.
-- run_status is also how a starting leader finds the runs that are not terminal.
CREATE TABLE run (
  run_id VARCHAR(160) NOT NULL PRIMARY KEY,
  job VARCHAR(64) NOT NULL,
  due BIGINT,
  status VARCHAR(32) NOT NULL,
  reason TEXT,
  cause VARCHAR(64) NOT NULL,
  request_key VARCHAR(64),
  request_hash VARCHAR(128),
  parent VARCHAR(160),
  workflow_id VARCHAR(160),
  group_name VARCHAR(64) NOT NULL,
  priority BIGINT NOT NULL,
  job_version BIGINT NOT NULL,
  snapshot MEDIUMTEXT NOT NULL,
  params MEDIUMTEXT NOT NULL,
  sharding_total BIGINT NOT NULL,
  cancel_requested BIGINT NOT NULL,
  counts TEXT,
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  finished_at BIGINT,
  version BIGINT NOT NULL,
  UNIQUE KEY run_due (job, due),
  KEY run_created (created_at, run_id),
  KEY run_job (job, created_at, run_id),
  KEY run_group (group_name, created_at, run_id),
  KEY run_status (status, created_at, run_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS schedule_job (
  job_id BIGINT NOT NULL PRIMARY KEY,
  task_id VARCHAR(192) NOT NULL,
  job_name VARCHAR(64) NOT NULL,
  params MEDIUMTEXT NOT NULL,
  sharding_total BIGINT NOT NULL,
  sharding_item BIGINT NOT NULL,
  timeout BIGINT NOT NULL,
  target_worker VARCHAR(128),
  status VARCHAR(32) NOT NULL,
  retry_count BIGINT NOT NULL DEFAULT 0,
  error_msg TEXT,
  create_time TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  update_time TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  run_id VARCHAR(160) NOT NULL,
  group_name VARCHAR(64) NOT NULL DEFAULT 'default',
  priority BIGINT NOT NULL DEFAULT 0,
  incarnation VARCHAR(128),
  attempt BIGINT NOT NULL DEFAULT 0,
  lost_count BIGINT NOT NULL DEFAULT 0,
  fence BIGINT NOT NULL DEFAULT 0,
  not_before BIGINT,
  started_at BIGINT,
  deadline BIGINT,
  finished_at BIGINT,
  result MEDIUMTEXT,
  error MEDIUMTEXT,
  version BIGINT NOT NULL DEFAULT 0,
  UNIQUE KEY schedule_job_task_id (task_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE INDEX schedule_job_run ON schedule_job (run_id, sharding_item, job_id);

-- There are no partial indexes here: it has all tasks, and is read for the statuses that are not terminal. With the
-- version, which adopted rows have not (0), it also tells open tasks from those without reading a row.
CREATE INDEX schedule_job_open ON schedule_job (status, fence, version);

CREATE TABLE attempt (
  task_id VARCHAR(192) NOT NULL,
  number BIGINT NOT NULL,
  worker_id VARCHAR(128),
  incarnation VARCHAR(128),
  fence BIGINT NOT NULL,
  outcome VARCHAR(32) NOT NULL,
  message TEXT,
  started_at BIGINT,
  finished_at BIGINT NOT NULL,
  PRIMARY KEY (task_id, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE worker (
  worker_id VARCHAR(128) NOT NULL PRIMARY KEY,
  incarnation VARCHAR(128),
  group_name VARCHAR(64) NOT NULL,
  host TEXT NOT NULL,
  slots BIGINT NOT NULL,
  weight BIGINT NOT NULL,
  handlers MEDIUMTEXT NOT NULL,
  tags MEDIUMTEXT NOT NULL,
  state VARCHAR(32) NOT NULL,
  connected_at BIGINT NOT NULL,
  last_seen_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- One row, always there; epoch 0 until somebody leads.
CREATE TABLE leader (
  id INTEGER NOT NULL PRIMARY KEY,
  epoch BIGINT NOT NULL,
  batch BIGINT NOT NULL,
  renewal BIGINT NOT NULL,
  owner TEXT NOT NULL,
  address TEXT NOT NULL,
  admin_url TEXT NOT NULL,
  last_id BIGINT NOT NULL,
  last_fence BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT INTO leader VALUES (1, 0, 0, 0, '', '', '', 0, 0);

CREATE TABLE log (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  task_id VARCHAR(192),
  run_id VARCHAR(160),
  at BIGINT NOT NULL,
  kind VARCHAR(32) NOT NULL,
  worker_id VARCHAR(128),
  attempt BIGINT,
  message MEDIUMTEXT NOT NULL,
  KEY log_task (task_id, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Ended tasks per job, hour (its first millisecond) and status: counters are kept, never counted over history.
CREATE TABLE rollup (
  job VARCHAR(64) NOT NULL,
  hour BIGINT NOT NULL,
  status VARCHAR(32) NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (job, hour, status)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
