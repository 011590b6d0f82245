-- What a replay of a rank's allocation history through the model of PyTorch's allocator showed.
-- Equal traces (rank_readings.trace) share their answers, whichever probe's history was replayed.
CREATE TABLE replays (
  id INTEGER PRIMARY KEY,
  probe INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  alloc_conf TEXT NOT NULL, -- the settings it was replayed under, as the allocator reported them to the probe
  model TEXT NOT NULL, -- the rules: which PyTorch's, and the version of the model
  limit_bytes INTEGER, -- what the allocator could take from the device; NULL: as much as it asked for
  survived INTEGER NOT NULL CHECK (survived IN (0, 1)), -- 0: it ran out of memory
  peak_allocated INTEGER NOT NULL, -- up to the end, or to the first out-of-memory error
  peak_reserved INTEGER NOT NULL,
  needed_bytes INTEGER, -- the smallest limit it survives; NULL: not looked for
  recorded TEXT NOT NULL,
  FOREIGN KEY (probe, rank) REFERENCES rank_readings (probe, rank)
) STRICT;
CREATE UNIQUE INDEX replays_once ON replays (probe, rank, alloc_conf, model, coalesce(limit_bytes, -1));
CREATE INDEX rank_readings_by_trace ON rank_readings (trace) WHERE trace IS NOT NULL;

CREATE TRIGGER replays_no_update BEFORE UPDATE ON replays
BEGIN SELECT RAISE(ABORT, 'append-only: replays do not change'); END;
CREATE TRIGGER replays_no_delete BEFORE DELETE ON replays
BEGIN SELECT RAISE(ABORT, 'append-only: replays are not deleted'); END;
