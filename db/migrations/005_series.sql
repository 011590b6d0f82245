-- Derived from the measurements, kept by oombisect: series over commits, what their newest reading is, steps and creep.
-- The only tables that are emptied and filled again; nothing in them was measured that is not in the tables above.

-- The memory of the GPUs that oombisect knows by name.
CREATE TABLE gpus (
  name TEXT PRIMARY KEY NOT NULL,
  capacity_bytes INTEGER NOT NULL
) STRICT;

-- Where commits lie, as a repository that was at hand told it.
CREATE TABLE places (
  point INTEGER PRIMARY KEY REFERENCES points (id),
  line TEXT NOT NULL, -- '': the first-parent line of the main branch; else the branch that it lies on
  position INTEGER NOT NULL -- how many first parents it has
) STRICT;

-- Which workloads have readings that their series do not show yet: those with more changes than the fit has seen.
CREATE TABLE workload_changes (
  workload INTEGER PRIMARY KEY REFERENCES workloads (id),
  changes INTEGER NOT NULL,
  fitted INTEGER NOT NULL DEFAULT 0 -- `changes` when its series were fitted
) STRICT;
CREATE INDEX workload_changes_unfitted ON workload_changes (workload) WHERE fitted < changes;
INSERT INTO workload_changes (workload, changes)
SELECT workload, 1 FROM probes WHERE finished IS NOT NULL UNION SELECT workload, 1 FROM imported_readings;

CREATE TRIGGER probes_change_series AFTER UPDATE OF finished ON probes
BEGIN
  INSERT INTO workload_changes (workload, changes) VALUES (NEW.workload, 1)
  ON CONFLICT (workload) DO UPDATE SET changes = changes + 1;
END;
CREATE TRIGGER imported_readings_change_series AFTER INSERT ON imported_readings
BEGIN
  INSERT INTO workload_changes (workload, changes) VALUES (NEW.workload, 1)
  ON CONFLICT (workload) DO UPDATE SET changes = changes + 1;
END;

-- One metric of one workload over the commits of one line. Points count once, however often they were measured.
CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  workload INTEGER NOT NULL REFERENCES workloads (id),
  provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'simulated', 'imported')),
  repo TEXT NOT NULL,
  line TEXT NOT NULL, -- as in places; '' also where no repository was at hand
  metric TEXT NOT NULL, -- allocated, reserved, device, external
  ordered_by TEXT NOT NULL CHECK (ordered_by IN ('first-parent', 'source', 'date')),
  exact INTEGER NOT NULL, -- how many points were read so
  censored INTEGER NOT NULL,
  unresolved INTEGER NOT NULL,
  first_point INTEGER NOT NULL REFERENCES points (id),
  last_point INTEGER NOT NULL REFERENCES points (id),
  last_committed TEXT,
  last_measured TEXT NOT NULL, -- when the newest of its readings was taken, or imported
  lowest_bytes INTEGER, -- of the exact readings
  highest_bytes INTEGER,
  latest_bytes INTEGER, -- of the last point that is not unresolved
  latest_outcome TEXT, -- exact; or censored: latest_bytes is a lower bound
  latest_point INTEGER REFERENCES points (id),
  latest_probe INTEGER REFERENCES probes (id), -- one of these two, whose reading that is
  latest_imported_reading INTEGER REFERENCES imported_readings (id),
  noise_bytes INTEGER NOT NULL, -- a standard deviation: what the fit takes for noise
  repeats INTEGER NOT NULL, -- how many points were measured more than once under the same conditions
  repeat_spread_bytes INTEGER NOT NULL, -- the largest difference between readings of one of them
  UNIQUE (workload, provenance, repo, line, metric)
) STRICT;
CREATE INDEX series_by_latest ON series (metric, latest_bytes);

-- Changes of level between two neighbouring readings of a series.
CREATE TABLE steps (
  series INTEGER NOT NULL REFERENCES series (id),
  position INTEGER NOT NULL, -- order in the series
  point INTEGER NOT NULL REFERENCES points (id), -- the first reading of the new level
  previous INTEGER NOT NULL REFERENCES points (id), -- the last of the old one
  metric TEXT NOT NULL, -- of the series
  delta_bytes INTEGER NOT NULL,
  before_bytes INTEGER NOT NULL,
  after_bytes INTEGER NOT NULL,
  at_least INTEGER NOT NULL CHECK (at_least IN (0, 1)), -- 1: one side ran out of memory, sizes are lower bounds
  state TEXT NOT NULL CHECK (state IN ('in force', 'fixed', 'partly fixed')),
  left_bytes INTEGER NOT NULL, -- of delta_bytes: what later steps have not taken back
  taken_back_by INTEGER REFERENCES points (id),
  blurred INTEGER NOT NULL, -- commits between the two readings: any of them may have done it
  readings INTEGER NOT NULL, -- of the new level
  PRIMARY KEY (series, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX steps_by_size ON steps (metric, delta_bytes);
CREATE INDEX steps_by_point ON steps (point);

-- Growth that no single commit did.
CREATE TABLE creeps (
  series INTEGER NOT NULL REFERENCES series (id),
  position INTEGER NOT NULL,
  first INTEGER NOT NULL REFERENCES points (id),
  last INTEGER NOT NULL REFERENCES points (id),
  metric TEXT NOT NULL,
  delta_bytes INTEGER NOT NULL,
  commits INTEGER NOT NULL,
  changes INTEGER NOT NULL, -- single changes told apart in it; 0: it drifts evenly
  largest_bytes INTEGER NOT NULL, -- the largest of them
  PRIMARY KEY (series, position)
) STRICT, WITHOUT ROWID;

-- Where probes of a workload ran out of memory; those under an enforced capacity do not count.
CREATE TABLE oom_sites (
  workload INTEGER NOT NULL REFERENCES workloads (id),
  phase TEXT NOT NULL,
  ooms INTEGER NOT NULL, -- ranks that died there
  points INTEGER NOT NULL, -- at how many points
  largest_request_bytes INTEGER, -- as the messages tell; NULL: none does
  most_unused_bytes INTEGER, -- the most that was reserved and not allocated
  newest TEXT NOT NULL, -- when the newest of these probes ended
  PRIMARY KEY (workload, phase)
) STRICT, WITHOUT ROWID;
