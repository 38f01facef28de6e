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
