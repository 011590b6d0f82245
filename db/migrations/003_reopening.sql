-- A finished session may be taken up again once its newest event holds the verdict that this takes away.
DROP TRIGGER sessions_keep_finished;
CREATE TRIGGER sessions_keep_finished BEFORE UPDATE ON sessions
WHEN OLD.state = 'finished' AND NOT (
  NEW.state = 'running' AND NEW.exit_code IS NULL AND NEW.verdict IS NULL AND EXISTS (
    SELECT 1 FROM events
    WHERE events.session = OLD.id AND events.kind = 'reopened'
      AND events.seq = (SELECT max(seq) FROM events WHERE session = OLD.id)
      AND instr(events.payload, '"exit_code":' || coalesce(OLD.exit_code, 'null') || ',') > 0
      AND instr(events.payload, '"verdict":' || coalesce(OLD.verdict, 'null')) > 0
  )
)
BEGIN SELECT RAISE(ABORT, 'append-only: a finished session does not change'); END;
