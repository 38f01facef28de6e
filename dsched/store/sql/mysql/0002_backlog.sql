-- Runs that wait in the store: created over the bound of what waits in memory, and not yet begun. One row per such run,
-- none for any other. seq is the job_id of its first task, so that it ascends in the order of creation.

CREATE TABLE backlog (
  seq BIGINT NOT NULL PRIMARY KEY,
  run_id VARCHAR(160) NOT NULL,
  job VARCHAR(64) NOT NULL,
  group_name VARCHAR(64) NOT NULL,
  handler VARCHAR(64) NOT NULL,
  priority BIGINT NOT NULL,
  tasks BIGINT NOT NULL,
  UNIQUE KEY backlog_run (run_id),
  KEY backlog_lane (group_name, handler, priority, seq),
  KEY backlog_job (job, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
