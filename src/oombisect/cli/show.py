"""`oombisect show`: one session again, its verdict and every probe."""

from __future__ import annotations

from oombisect.cli.options import Database, Json, Session


def show(
    session: Session = "last",
    database: Database = None,
    json: Json = False,
) -> None:
    """Show a session's verdict and every probe of it.

    Exit codes: 0, 2 usage, such as no such session, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.sessions_of import clock, named_session, print_json
    from oombisect.history.location import default_database
    from oombisect.history.records import SessionState
    from oombisect.history.store import open_store
    from oombisect.reports.sessions import probe_row_json, render_probes, session_json
    from oombisect.reports.terminal import render, report_console
    from oombisect.session.events import why_stopped
    from oombisect.session.verdict import Report

    with open_store(database or default_database(), clock=clock, readonly=True) as store:
        found = named_session(store, session)
        probes = store.probes(found.id)
        stopped = why_stopped(store.events(found.id)) if found.state is SessionState.INTERRUPTED else None
    if json:
        rows = [probe_row_json(probe) for probe in probes]
        error = stopped and {"cause": stopped[0], "way_out": stopped[1]}
        document = {"schema": 1, "session": session_json(found), "report": found.verdict, "probes": rows}
        print_json({**document, "stopped": error})
        return
    console = report_console()
    render_probes(found, probes, console, stopped)
    if found.verdict and "verdict" in found.verdict:
        render(Report.from_json(found.verdict), console)
