-- Ended tasks by hour (its first millisecond), job and status. Nothing wrote to the table before, so it is made anew with
-- the hour first: that is how it is read, and how it ages.
DROP TABLE rollup;

CREATE TABLE rollup (
  hour BIGINT NOT NULL,
  job VARCHAR(64) NOT NULL,
  status VARCHAR(32) NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (hour, job, status)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

-- Tasks by status, newest first. It serves the open ones too, in the place of the index that was in the order of fences:
-- with the version, which adopted rows have not (0), it tells open tasks from those without reading a row.
CREATE INDEX schedule_job_status ON schedule_job (status, job_id, version, fence);

DROP INDEX schedule_job_open ON schedule_job;
