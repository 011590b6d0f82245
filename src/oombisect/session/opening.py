"""From a request to a session that can run: repository, device, interpreter, store, axis; new or resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oombisect.errors import OombisectError
from oombisect.probing.benches import HOST_BYTES, bench_count, benches
from oombisect.probing.build import Build
from oombisect.probing.collect import peak_host_bytes
from oombisect.probing.devices import Device, open_device
from oombisect.probing.environments import Environments
from oombisect.probing.guard import Limits
from oombisect.probing.interpreter import inspect_interpreter
from oombisect.probing.prober import Prober
from oombisect.recipes.scan import RecipeScanner
from oombisect.repo.bridge import BridgeRepository, open_repository
from oombisect.repo.slots import Slot
from oombisect.repo.whole import WholeRepository, open_whole
from oombisect.session.command_targets import CommandTargets
from oombisect.session.commit_line import CommitTargets
from oombisect.session.hotfixes import Hotfixes
from oombisect.session.measuring import Place, Watcher
from oombisect.session.point_environment import LockEnvironments
from oombisect.session.request import ProbeRequest
from oombisect.units import format_bytes

if TYPE_CHECKING:
    from oombisect.history.store import Store

_SEEN = 20
"""So many earlier probes tell how much host memory one takes."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What probing a commit takes: the history, a slot to lay commits out in, a device, and a prober on it.

    `request` is what was asked for, with what it names read: to be kept, for the files may change.
    `environments` builds others than the session's own.
    """

    request: ProbeRequest
    repository: BridgeRepository
    slot: Slot
    device: Device
    prober: Prober
    limit: int
    environments: Environments


@contextmanager
def open_workshop(
    request: ProbeRequest,
    *,
    cwd: Path,
    cache: Path,
    watcher: Watcher,
    look: Callable[[BridgeRepository], object],
) -> Iterator[Workshop]:
    """Open everything a probe needs; the slot is released at the end.

    `look` finds in the history what was asked for: a commit that is not there is refused before a device is built,
    which can take minutes.

    Raises:
        OombisectError: no repository, no such device or interpreter, a limit above the device's capacity.
    """
    opened = open_whole if request.runs_command else open_repository
    repository = opened(
        Path(request.repo) if request.repo else None,
        cwd,
        cache,
        watcher.say,
        Path(request.megatron) if request.megatron else None,
    )
    watcher.say(f"repository: {repository.name}")
    look(repository)
    hotfixes = (hotfix if hotfix.patch else repository.hotfix(hotfix.source) for hotfix in request.hotfixes)
    request = replace(request, hotfixes=tuple(hotfixes))
    interpreter = inspect_interpreter(Path(request.python) if request.python else None)
    device = open_device(request.gpu, interpreter, cache, watcher.say)
    if request.gpu is None and device.simulated:
        watcher.say(f"no GPU here: probing on {device.name} (simulated)")
    limit = request.limit_bytes or device.capacity
    if limit > device.capacity and not device.simulated:
        raise OombisectError(
            f"the limit of {format_bytes(limit)} is above the device's {format_bytes(device.capacity)}",
            "A run cannot be shown to fit more than the device has; probe on a larger virtual GPU instead.",
        )
    made_up = request.world_size or request.ranks or request.prepare
    if request.runs_command and device.process_group != "fake" and made_up:
        raise OombisectError(
            "--world-size, --ranks and --prepare make up a world on a virtual GPU, and this is a real one",
            "Put what starts the ranks into the command, for example `torchrun --nproc-per-node 8 train.py`.",
        )
    prober = Prober(
        interpreter,
        device,
        request.workload,
        Limits(request.time_limit, request.host_bytes),
        cache,
        watcher.tick,
        lambda other: open_device(device.name, other, cache, watcher.say),
    )
    with repository.acquire_slot() as slot, prober:
        environments = Environments(interpreter, cache, watcher.say)
        yield Workshop(request, repository, slot, device, prober, limit, environments)


@contextmanager
def open_places(store: Store, workshop: Workshop, jobs: int | None, watcher: Watcher) -> Iterator[tuple[Place, ...]]:
    """Where `jobs` probes can run at once (None: as many as the machine can); none where one is enough.

    What earlier probes in `store` took of host memory says how many it carries.

    Raises:
        OombisectError: there are not as many GPUs, or slots.
    """
    device, workload = workshop.device, workshop.prober.workload
    count, note = (1, "") if jobs == 1 else bench_count(jobs, device, workload, _host_bytes(store, workshop))
    if note:
        watcher.say(note)
    with ExitStack() as stack:
        places = []
        for bench in benches(count, device, workload) if count > 1 else ():
            slot = stack.enter_context(workshop.repository.acquire_slot())
            stack.callback(bench.close)
            places.append(Place(slot, bench))
        yield tuple(places)


def _host_bytes(store: Store, workshop: Workshop) -> int:
    """What a bench takes: the most that a probe of the recipe took on this device, and as much for what it comes of.

    A probe is forked from a process that has imported the packages. Ranks of a recipe run one after another, those of
    a command at once.
    """
    workload = workshop.prober.workload
    probes = store.probes_like(workload.recipe, workshop.device.name, _SEEN)
    ranks = (peak_host_bytes(store.artifacts / probe.spec.session / str(probe.id)) for probe in probes)
    together = sum if workload.command else max
    return 2 * max((together(told) for told in ranks if told), default=0) or HOST_BYTES


def targets_of(workshop: Workshop, request: ProbeRequest, cache: Path) -> CommitTargets | CommandTargets:
    """What makes targets of the workshop's commits: recipes of Bridge, or the command the user gave."""
    repository, prober = workshop.repository, workshop.prober
    hotfixes = Hotfixes(repository, request.hotfixes)
    if isinstance(repository, WholeRepository):
        build = Build(request.build, prober.interpreter, prober.limits, prober.on_tick) if request.build else None
        return CommandTargets(repository, workshop.slot, prober.workload, hotfixes, build)
    locks = LockEnvironments(workshop.environments, repository) if request.per_lock else None
    return CommitTargets(repository, workshop.slot, RecipeScanner(repository, cache), request.recipe, hotfixes, locks)
