"""`oombisect serve`, asked over HTTP: what it shows, and that it shows it to this machine alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "history"))

from history_support import Clock
from series_support import OUT, add_series, sha

from oombisect.cli.app import app
from oombisect.cli.serve_of import serve_database
from oombisect.errors import OombisectError
from oombisect.history.queries import queries
from oombisect.history.store import open_store
from oombisect.units import GIB
from tests.cli.test_exits import signals_as_in_a_terminal

EVIL = "</script><script>alert(1)</script>"
SERVE = "import sys; sys.argv[0] = 'oombisect'; from oombisect.cli.main import main; main()"


@dataclass
class Server:
    process: subprocess.Popen[str]
    address: str
    database: Path

    def get(self, path: str, host: str | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.address}{path}", headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str, **parameters: Any) -> Any:
        code, text = self.get(f"{path}?{urllib.parse.urlencode({'_shape': 'objects', **parameters})}")
        assert code == 200, text
        return json.loads(text)["rows"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    database = tmp_path_factory.mktemp("serve") / "my data.db"
    with open_store(database, clock=Clock()) as store:
        add_series(store, [60 * GIB] * 5 + [63 * GIB] * 3 + [(OUT, 79 * GIB)], recipe=f"grows{EVIL}")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--db", str(database)],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=signals_as_in_a_terminal,
    )
    assert process.stderr is not None
    address = process.stderr.readline().split("/  ")[0]
    assert address.startswith("http://127.0.0.1:"), address + process.stderr.read()
    yield Server(process, address, database)
    if process.poll() is None:
        process.kill()
    process.wait()


def test_pages(server: Server) -> None:
    for path in (
        "/",
        "/oombisect",
        "/oombisect/series",
        "/oombisect/steps",
        "/oombisect/readings",
        "/oombisect/measurements",
    ):
        code, text = server.get(path)
        assert code == 200 and EVIL not in text, path
    assert "61.00 GiB" not in server.get("/oombisect/steps")[1] and "60.00 GiB" in server.get("/oombisect/steps")[1]


@pytest.mark.parametrize("name", list(queries()))
def test_every_question_answers_with_an_empty_form(server: Server, name: str) -> None:
    rows = server.json(f"/oombisect/{name}.json")
    assert rows or name in (
        "between-releases",
        "steps-between",
        "not-probed-lately",
        "worst-fragmentation",
        "creeping",
        "noise",
    )


def test_parameters_are_what_the_command_line_takes(server: Server) -> None:
    assert [row["delta_bytes"] for row in server.json("/oombisect/largest-regressions.json")] == [16 * GIB, 3 * GIB]
    assert len(server.json("/oombisect/largest-regressions.json", limit=1)) == 1
    assert server.json("/oombisect/largest-regressions.json", provenance="measured") == []
    old, new = sha(0), sha(7)
    (row,) = server.json("/oombisect/between-releases.json", old=old, new=new)
    assert row["delta_bytes"] == 3 * GIB
    assert server.json("/oombisect/between-releases.json", old=old, new=new, least=4 * GIB) == []


def test_what_the_command_line_refuses_a_form_refuses(server: Server) -> None:
    for query in (
        "largest-regressions?metric=foo",
        "largest-regressions.json?limit=five",
        "near-the-limit?gpu=nosuch",
        "headroom.json?recipe=nosuch",
        f"between-releases?old=nosuchtag&new={sha(7)}",
    ):
        code, text = server.get(f"/oombisect/{query}")
        assert code == 400 and "=" in text and text.count("\n") == 2, query
    assert server.json("/oombisect/between-releases.json", old=sha(0), new=sha(7), least="4GiB") == []
    assert len(server.json("/oombisect/largest-regressions.json", metric="", limit="1")) == 1


def test_the_first_page_has_the_questions_and_hashes_are_short(server: Server) -> None:
    home = server.get("/")[1]
    assert all(f'href="/oombisect/{name}"' in home for name in queries())
    page = server.get("/oombisect/largest-regressions")[1]
    assert re.search(r'<span title="[0-9a-f]{40}">[0-9a-f]{10}</span>', page)


def test_refusals_are_answers(server: Server) -> None:
    assert server.get("/../../etc/passwd")[0] == 404
    assert server.get("/oombisect/probes/99999")[0] == 404
    for suffix in ("", ".json"):
        code, text = server.get(f"/oombisect{suffix}?{urllib.parse.urlencode({'sql': 'DELETE FROM probes'})}")
        assert code == 400 and "must be a SELECT" in text and EVIL not in text
        code, text = server.get(f"/oombisect{suffix}?{urllib.parse.urlencode({'sql': 'SELECT zeroblob(900000000)'})}")
        assert code == 400 and "too big" in text


def test_facets_are_ready(server: Server) -> None:
    code, text = server.get("/oombisect/series.json")
    facets = json.loads(text)["facet_results"]
    assert code == 200 and {one["value"] for one in facets["metric"]["results"]} == {
        "allocated",
        "reserved",
        "device",
        "external",
    }


def test_a_workload_has_its_plot(server: Server) -> None:
    code, text = server.get("/-/oombisect/workload/1")
    assert code == 200 and "Plotly.newPlot" in text and EVIL not in text
    figure = json.loads(text.split("const figure = ")[1].split(";\n")[0])
    first, died = figure["data"][:2]
    assert first["y"] == [60] * 5 + [63] * 3 and "simulated" in first["name"]
    assert (died["x"], died["y"]) == ([8], [79]) and len(figure["layout"]["shapes"]) == 2
    assert server.get("/-/oombisect/plotly.js")[0] == 200
    assert server.get("/-/oombisect/workload/99")[0] == 404
    assert "/-/oombisect/workload/1" in server.get("/oombisect/latest")[1]


def test_nothing_comes_from_elsewhere(server: Server) -> None:
    for path in ("/oombisect/series", "/-/oombisect/workload/1"):
        text = server.get(path)[1]
        for attribute in ('src="http', "src='http", 'src="//', 'href="//'):
            assert attribute not in text


@pytest.mark.parametrize(
    "sql",
    [
        "delete from gpus",
        "with one as (select 1) insert into gpus select 'a', 1",
        "select load_extension('x')",
        "attach ':memory:' as a",
        "pragma query_only = off",
    ],
)
def test_sql_only_reads(server: Server, sql: str) -> None:
    before = hashlib.sha256(server.database.read_bytes()).hexdigest()
    code, text = server.get(f"/oombisect.json?{urllib.parse.urlencode({'sql': sql})}")
    assert code >= 400, text
    assert hashlib.sha256(server.database.read_bytes()).hexdigest() == before
    assert server.json("/oombisect.json", sql="select count(*) as n from probes") == [{"n": 9}]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", ""])
def test_another_name_gets_nothing(server: Server, host: str) -> None:
    """As a page of another site would ask, whose name it has made to mean this machine."""
    code, text = server.get("/oombisect", host or "x")
    assert code == 421 and "oombisect" not in text


def test_localhost_is_this_machine(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    assert server.get("/", f"localhost:{port}")[0] == 200
    assert server.get("/", "[::1]:80")[0] == 200


def test_no_other_interface_is_listened_on(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", port)) != 0


def test_new_readings_are_seen_while_it_runs(server: Server) -> None:
    """It reads what a session writes meanwhile (and does not keep it from writing)."""
    with open_store(server.database, clock=Clock()) as store:
        add_series(store, [50 * GIB], recipe="new")
    rows = server.json("/oombisect.json", sql="select count(*) as n from probes where workload = 2")
    assert rows == [{"n": 1}]


def test_a_taken_port_and_other_hosts_are_refused(server: Server) -> None:
    taken = int(server.address.rpartition(":")[2])
    with pytest.raises(OombisectError, match="cannot be had"):
        serve_database(server.database, taken)
    with pytest.raises(OombisectError, match="is no port"):
        serve_database(server.database, 70000)
    with pytest.raises(Exception, match="No such option"):
        app(["serve", "--host", "0.0.0.0"], standalone_mode=False)


def test_ctrl_c_ends_it(server: Server) -> None:
    """The last test of the module: it ends the server."""
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 130
    assert server.process.stderr is not None and "Traceback" not in server.process.stderr.read()
