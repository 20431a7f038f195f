"""The upgrade, the roll-back, the next upgrade and the way down, with jobs of every kind in each of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import asyncpg

from pg_scheduler.embedded import EmbeddedPostgres
from tools.environment import ROOT
from tools.upgrade.fleet import Caller, Fleet, RehearsalError
from tools.upgrade.jobs import TICK
from tools.upgrade.kinds import KINDS
from tools.upgrade.ledger import Entry, open_gate, phase_of, read
from tools.upgrade.releases import Release, extract, title_of
from tools.upgrade.verdict import PHASES, Verdict, due_times, problems_by_job, problems_of_schedule

WORKERS: Final = 2
END_S: Final = 90.0
"""How long the jobs of a phase may take after its gate has opened, on any machine."""

POLL_S: Final = 0.1

_UNFINISHED = """
    SELECT task_data #>> '{args,0}', status, blocked_on FROM scheduled_jobs
    WHERE finished_at IS NULL AND split_part(task_data #>> '{args,0}', '/', 1) = ANY ($1)
"""
_RUNNING = """
    SELECT count(*) FROM scheduled_jobs WHERE status = 'running' AND task_data #>> '{args,0}' = ANY ($1)
"""
_ENDED = """
    SELECT task_data #>> '{args,0}' AS tag, status FROM scheduled_jobs
    WHERE finished_at IS NOT NULL AND job_name <> 'rehearsal.fire'
"""

Log = Callable[[str], None]
Tags = dict[str, list[str]]


class Rehearsal:
    """One rehearsal on an empty database.

    Args:
        old: The release before.
        new: This release.
        fleet: The processes.
        pool: A pool of the database.
        folder: The folder of the ledger.
        count: How many jobs of each kind there are in each phase.
        log: Called with each event.
    """

    def __init__(
        self,
        old: Release,
        new: Release,
        *,
        fleet: Fleet,
        pool: asyncpg.Pool[Any],
        folder: Path,
        count: int,
        log: Log,
    ) -> None:
        self._old, self._new = old, new
        self._fleet, self._pool, self._folder = fleet, pool, folder
        self._count = count
        self._log = log
        self.verdict = Verdict(f"from {old.title}")
        self._prepared: dict[str, Tags] = {}
        self._begins: dict[str, datetime] = {}
        self._callers: dict[str, Caller] = {}
        self._seats = 0

    async def run(self) -> None:
        """Run all phases."""
        await self._pool.execute("CREATE TABLE rehearsal_effects (tag text)")
        await self._upgrade()
        await self._roll_back()
        await self._roll_forward()
        if self._new.version > self._old.version:
            await self._migrate_down()
        await self._stop_workers()
        self._judge()
        await self._judge_effects()
        self.verdict.problems += self._fleet.complaints()

    @property
    def _old_kinds(self) -> Sequence[str]:
        return self._callers["old"].kinds

    @property
    def _new_kinds(self) -> Sequence[str]:
        return self._callers["new"].kinds

    @property
    def _only_new_kinds(self) -> Sequence[str]:
        return [key for key in self._new_kinds if key not in self._old_kinds]

    async def _upgrade(self) -> None:
        """Let the old release prepare jobs, migrate its tables below its workers, and add new workers."""
        await self._start_workers(self._old)
        self._callers["old"] = await self._fleet.open_caller("caller-old", self._old)
        self._log(f"{WORKERS} workers of {self._old.title}, tables of version {self._old.version}")
        await self._prepare("both", self._old_kinds, by="old")
        await self._load("both", "old")
        await self._fleet.run("migrate", self._new, "migrate")
        former_workers = self._fleet.workers
        await self._start_workers(self._new)
        self._callers["new"] = await self._fleet.open_caller("caller-new", self._new)
        self._log(f"tables of version {self._new.version}, {WORKERS} more workers, of this release")
        await self._load("both", "new")
        await self._prepare("both", self._only_new_kinds, by="new")
        await self._proceed("both", self._new_kinds, by="new")
        for name in former_workers:
            await self._fleet.stop(name)
        await self._end_load("both")
        await self._finish("both", self._new_kinds)

    async def _roll_back(self) -> None:
        """Replace the new workers by old ones, which work on the tables of the new release."""
        await self._prepare("back", self._new_kinds, by="new")
        await self._change("back", self._old)
        await self._proceed("back", self._old_kinds, by="old")
        await self._finish("back", self._old_kinds)
        self._check_waiting("back")

    async def _roll_forward(self) -> None:
        """Replace the old workers by new ones, which also run what the old ones have left."""
        await self._prepare("forward", self._old_kinds, by="old")
        await self._change("forward", self._new)
        await self._prepare("forward", self._only_new_kinds, by="new")
        await self._proceed("forward", self._new_kinds, by="new")
        await self._finish("forward", self._new_kinds)
        await self._proceed("back", self._only_new_kinds, by="new")
        await self._finish("back", self._only_new_kinds)

    async def _migrate_down(self) -> None:
        """Stop all workers and migrate down, let old workers run what they know, and migrate up again."""
        await self._prepare("down", self._new_kinds, by="new")
        await self._load("down", "new")
        await self._stop_workers()
        await self._end_load("down")
        target = str(self._old.version)
        await self._fleet.run("migrate-down", self._new, "migrate", "down", "--to", target, "--yes")
        await self._load("down", "old")
        await self._start_workers(self._old)
        self._log(f"tables of version {target}, {WORKERS} workers of {self._old.title}")
        await self._proceed("down", self._old_kinds, by="old")
        await self._end_load("down")
        await self._finish("down", self._old_kinds)
        self._check_waiting("down")
        await self._stop_workers()
        await self._fleet.run("migrate-again", self._new, "migrate")
        await self._start_workers(self._new)
        await self._proceed("down", self._only_new_kinds, by="new")
        await self._finish("down", self._only_new_kinds)

    async def _start_workers(self, release: Release) -> None:
        for _ in range(WORKERS):
            await self._start(release)

    async def _stop_workers(self) -> None:
        for name in self._fleet.workers:
            await self._fleet.stop(name)

    async def _start(self, release: Release) -> None:
        self._seats += 1
        await self._fleet.start(f"worker-{self._seats}-{release.name}", release)

    async def _change(self, phase: str, release: Release) -> None:
        """Replace the workers one by one, while both releases enqueue jobs."""
        await self._load(phase, "old", "new")
        for name in self._fleet.workers:
            await self._start(release)
            await self._fleet.stop(name)
        await self._end_load(phase)
        self._log(f"workers replaced by those of {release.title}")

    async def _load(self, phase: str, *callers: str) -> None:
        for name in callers:
            await self._callers[name].call("begin_load", phase)

    async def _end_load(self, phase: str) -> None:
        for caller in self._callers.values():
            self._tags(phase)["due"] += await caller.call("end_load")

    def _tags(self, phase: str) -> Tags:
        self._begins.setdefault(phase, datetime.now(UTC))
        return self._prepared.setdefault(phase, {"due": []})

    async def _prepare(self, phase: str, keys: Sequence[str], *, by: str) -> None:
        """Prepare jobs of these kinds, and wait until they wait, sleep or run as they should."""
        tags = {
            key: [f"{phase}:{key}:{number:03}" for number in range(self._count)]
            for key in keys
            if key != "due"
        }
        self._tags(phase).update(tags)
        await self._callers[by].call("prepare", phase, tags)
        suspended = [tag for key in ("sleep", "signal", "children", "mailbox") for tag in tags.get(key, ())]

        async def lacks() -> object:
            events = {(entry.tag, entry.event) for entry in read(self._folder)}
            missing: list[str] = []
            for key, tags_of_kind in tags.items():
                kind = KINDS[key]
                unready = [tag for tag in tags_of_kind if kind.ready and (tag, kind.ready) not in events]
                # Any of the jobs may be the one that has begun, since several workers claim them.
                if len(unready) == len(tags_of_kind) or not kind.only_one_is_ready:
                    missing += unready
            return missing or await self._pool.fetchval(_RUNNING, suspended)

        await self._wait(lacks, f"jobs that the {by} release has prepared do not begin")
        self._log(f"{PHASES[phase]}: {sum(map(len, tags.values()))} jobs prepared by the {by} release")

    async def _proceed(self, phase: str, keys: Sequence[str], *, by: str) -> None:
        open_gate(self._folder, phase)
        tags = self._tags(phase)
        await self._callers[by].call("proceed", phase, {key: tags[key] for key in keys if key in tags})

    async def _finish(self, phase: str, keys: Sequence[str]) -> None:
        """Wait until all jobs of these kinds have ended."""
        tags = [tag for key in keys for tag in self._tags(phase).get(key, ())]
        scheduled = set(self._tags(phase).get("schedule", ())) if "schedule" in keys else set()

        async def lacks() -> object:
            fired = Counter(entry.tag for entry in read(self._folder) if entry.event == "ran")
            late = [tag for tag in scheduled if fired[tag] < KINDS["schedule"].events[""]["ran"]]
            return late or [tuple(row) for row in await self._pool.fetch(_UNFINISHED, tags)]

        await self._wait(lacks, f"jobs of the phase {PHASES[phase]!r} do not end")
        self._log(f"{PHASES[phase]}: {len(tags)} jobs have ended")

    async def _wait(self, lacks: Callable[[], Any], problem: str) -> None:
        """Wait until nothing is missing; note it as a problem after some time."""
        missing: object = None
        try:
            async with asyncio.timeout(END_S):
                while missing := await lacks():  # noqa: ASYNC110 - processes and tables raise no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.verdict.problems.append(f"{problem}: {missing}")

    def _check_waiting(self, phase: str) -> None:
        """Check that the old release has left the jobs alone that it does not know."""
        tags = {tag for key in self._only_new_kinds for tag in self._tags(phase).get(key, ())}
        self.verdict.problems += [
            f"{entry.tag}: {entry.event!r} in the old release, which does not know the kind"
            for entry in read(self._folder)
            if entry.release == "old" and entry.tag in tags
        ]

    def _judge(self) -> None:
        """Fill the table from the ledger."""
        entries = read(self._folder)
        verdict = self.verdict
        for key in self._new_kinds:
            kind = KINDS[key]
            for phase, tags_by_kind in self._prepared.items():
                tags = tags_by_kind.get(key, ())
                own_entries = [entry for entry in entries if entry.tag.partition("/")[0] in set(tags)]
                problems = problems_by_job(kind, tags, own_entries)
                verdict.problems += chain.from_iterable(problems.values())
                waited = key not in self._old_kinds and phase in ("back", "down")
                # A migration down drops the order of jobs that the old release does not know.
                if kind.check and not (waited and phase == "down"):
                    verdict.problems += kind.check(own_entries)
                good = f"{len(tags) - len(problems):,} of {len(tags):,}"
                verdict.add_cell(kind.name, phase, good + ", after the next upgrade" * waited)
        self._judge_schedule([entry for entry in entries if entry.tag == TICK])
        for release in ("old", "new"):
            for phase in self._prepared:
                successes = [
                    entry
                    for entry in entries
                    if (entry.release, entry.event, phase_of(entry.tag)) == (release, "ran", phase)
                ]
                verdict.add_cell(
                    f"successful attempts in the {release} release", phase, f"{len(successes):,}"
                )

    def _judge_schedule(self, entries: Sequence[Entry]) -> None:
        """Check that each second of the whole rehearsal has one job of the schedule in the code."""
        fire_times = [datetime.fromisoformat(entry.fire_time or "") for entry in entries]
        self.verdict.problems += problems_of_schedule(fire_times)
        counts = Counter(fire_times)
        begins = [*self._begins.values(), datetime.max.replace(tzinfo=UTC)]
        for phase, begin, end in zip(self._begins, begins, begins[1:], strict=False):
            due = [due_time for due_time in due_times(fire_times) if begin <= due_time < end]
            good = sum(counts[due_time] == 1 for due_time in due)
            self.verdict.add_cell("fire times of a schedule in the code", phase, f"{good} of {len(due)}")

    async def _judge_effects(self) -> None:
        """Check the statuses of all jobs, and what was written in transactions."""
        statuses = {row["tag"]: row["status"] for row in await self._pool.fetch(_ENDED)}
        effects = Counter([row[0] for row in await self._pool.fetch("SELECT tag FROM rehearsal_effects")])
        problems = self.verdict.problems
        for tags in self._prepared.values():
            for key, tags_of_kind in tags.items():
                kind = KINDS[key]
                for tag in tags_of_kind:
                    if key != "schedule" and statuses.get(tag) not in kind.statuses:
                        problems.append(f"{tag} is {statuses.get(tag, 'lost')}, not {kind.statuses[0]}")
                    if kind.writes_effects and effects[tag] != 1:
                        problems.append(f"{tag} has written {effects[tag]} times, not once")


@asynccontextmanager
async def open_database(server: EmbeddedPostgres, name: str) -> AsyncIterator[asyncpg.Pool[Any]]:
    """Create a database and open a pool of it."""
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    async with asyncpg.create_pool(server.dsn(name), min_size=1, max_size=4) as pool:
        yield pool


async def rehearse(server: EmbeddedPostgres, ref: str, count: int, log: Log) -> Verdict:
    """Rehearse the upgrade from a release, with so many jobs of each kind in each phase."""
    folder = Path(tempfile.mkdtemp(prefix="upgrade-"))
    root = folder / "library"
    root.mkdir()
    old = Release("old", title_of(ref), extract(ref, root))
    new = Release("new", "this release", ROOT)
    application = folder / "application"
    application.mkdir()
    async with open_database(server, "rehearsal") as pool:
        fleet = Fleet(application, server.dsn("rehearsal"), pool)
        rehearsal = Rehearsal(old, new, fleet=fleet, pool=pool, folder=application, count=count, log=log)
        try:
            await rehearsal.run()
        except (RehearsalError, TimeoutError) as error:
            rehearsal.verdict.problems.append(f"the rehearsal did not end: {error}")
        finally:
            await fleet.close()
    keep_if_needed(folder, rehearsal.verdict.problems)
    return rehearsal.verdict


def keep_if_needed(folder: Path, problems: list[str]) -> None:
    """Remove the folder of a rehearsal without problems; otherwise add where it is."""
    if problems:
        problems.append(f"the logs of the processes are in {folder}")
    else:
        shutil.rmtree(folder)
