"""The search: which changes of an axis moved memory, and by how much. Pure: no I/O, no clock, no randomness.

state = start(count, Options())
while requests := plan(state):
    for request in requests:
        state = observe(state, request, answer(request))
conclusion = conclude(state)
"""

from oombisect.search.conclusion import Conclusion, Step, Stretch, conclude
from oombisect.search.metric import METRICS, Metric
from oombisect.search.observation import (
    Censored,
    Conflict,
    Delta,
    Exact,
    Infra,
    Metrics,
    Observation,
    Unresolved,
)
from oombisect.search.options import FINDS, Options
from oombisect.search.plan import plan
from oombisect.search.requests import Measure, Remeasure, Request, Revert
from oombisect.search.state import SearchError, State, observe, replay, start
from oombisect.search.survey import Kind

__all__ = [
    "Censored",
    "Conclusion",
    "Conflict",
    "Delta",
    "Exact",
    "FINDS",
    "Infra",
    "Kind",
    "METRICS",
    "Measure",
    "Metric",
    "Metrics",
    "Observation",
    "Options",
    "Remeasure",
    "Request",
    "Revert",
    "SearchError",
    "State",
    "Step",
    "Stretch",
    "Unresolved",
    "conclude",
    "observe",
    "plan",
    "replay",
    "start",
]
