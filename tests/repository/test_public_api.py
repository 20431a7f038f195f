"""The public API: its names, modules and signatures, and no effects of importing it."""

from __future__ import annotations

import ast
import asyncio
import difflib
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import (
    PeriodicJobConfig,
    PollingConfig,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    errors,
    events,
)
from pg_scheduler.testing import AsyncTestKit, TestKit
from tests.docs.snippets import PAGES, ROOT, snippets_of
from tests.support.cases import each_case
from tests.support.libraries import is_left_out
from tools.reference.extension import complete_modules
from tools.reference.names import FILE, text_of_names
from tools.reference.source import PUBLIC_MODULES, find, public_names

NAMES = [
    "Abort",
    "AfterOutcome",
    "AttemptError",
    "Call",
    "CatchUp",
    "Child",
    "Chunk",
    "ChunkJob",
    "Codec",
    "ConfigurationError",
    "ConflictResolution",
    "Connection",
    "ConnectionAdapter",
    "ConnectionLostError",
    "ConnectionRejectedError",
    "CurrentJob",
    "DatabaseCopyError",
    "DatabaseUnavailableError",
    "DeadlineExceededError",
    "DuplicateStepError",
    "First",
    "Injected",
    "Job",
    "JobCall",
    "JobCancelledError",
    "JobConflictError",
    "JobCounts",
    "JobEndedError",
    "JobError",
    "JobExecutor",
    "JobExpiredError",
    "JobFailedError",
    "JobFunction",
    "JobLostError",
    "JobNotFoundError",
    "JobPriority",
    "JobProgress",
    "JobResult",
    "JobSpec",
    "JobStatus",
    "JobStream",
    "Limit",
    "Middleware",
    "MigrationChangedError",
    "NameConflictError",
    "NotRunningError",
    "Overlap",
    "Page",
    "PayloadError",
    "PeriodicJobConfig",
    "PollingConfig",
    "PoolClosedError",
    "ProcessExecutor",
    "ResultUnavailableError",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleConflictError",
    "ScheduleNotFoundError",
    "ScheduleOwnedByCodeError",
    "ScheduledCall",
    "Scheduler",
    "SchedulerError",
    "SchemaError",
    "SchemaForbiddenError",
    "SchemaMismatchError",
    "SchemaMissingError",
    "SchemaTooNewError",
    "Sequence",
    "ServiceCancelledError",
    "Share",
    "Sleep",
    "Snooze",
    "StepCursor",
    "StepFailedError",
    "Steps",
    "StreamItem",
    "TaskInfo",
    "ThreadExecutor",
    "TransientFault",
    "UNSET",
    "Unique",
    "VacuumConfig",
    "VacuumPolicy",
    "VacuumTrigger",
    "Wait",
    "Worker",
    "__version__",
    "call",
    "current_job",
    "job",
    "job_state",
    "periodic",
]

TYPE_ALIASES = ["AfterOutcome", "Connection", "Injected", "JobFunction"]

METHODS = [
    "connect",
    "end_sleep",
    "get_value",
    "stream",
    "start",
    "shutdown",
    "wait",
    "initialize_db",
    "register",
    "schedule",
    "enqueue",
    "schedule_bulk",
    "schedule_job",
    "cancel_job",
    "cancel_jobs",
    "retry_job",
    "run_job_now",
    "signal",
    "send",
    "broadcast",
    "update_job_status",
    "get_job",
    "get_job_result",
    "run_job",
    "list_jobs",
    "count_jobs",
    "workers",
    "health",
    "subscribe",
    "next_event",
    "events",
    "recover_orphaned_jobs",
    "periodic_orphan_recovery",
    "listen_for_jobs",
    "monitor_heartbeats",
    "send_heartbeat",
    "load_task_functions",
    "execute_job",
    "execute_job_with_concurrency_control",
    "run_vacuum",
    "get_vacuum_stats",
    "get_total_vacuum_stats",
    "get_periodic_jobs",
    "enable_periodic_job",
    "disable_periodic_job",
    "trigger_periodic_job",
    "get_periodic_job_status",
]

PLAIN_METHODS = [
    "connect",
    "health",
    "register",
    "subscribe",
    "events",
    "stream",
    "get_periodic_jobs",
    "enable_periodic_job",
    "disable_periodic_job",
    "get_periodic_job_status",
]


def test_package_exports_the_public_names_only() -> None:
    assert sorted(pg_scheduler.__all__) == NAMES == sorted(NAMES)
    assert all(hasattr(pg_scheduler, name) for name in NAMES)
    modules = {name for name, value in vars(pg_scheduler).items() if inspect.ismodule(value)}
    public = {name for name in vars(pg_scheduler) if not name.startswith("_")}
    assert public - modules == set(NAMES) - {"__version__"}


PROMISED = (
    "the public names have changed. A line that vanishes or changes breaks users: keep it, and deprecate it "
    "as docs/project/stability.md describes. For an addition, run python3 dev.py renew:"
)


def test_names_and_parameters_are_those_that_the_file_promises() -> None:
    """What an application of an earlier release uses stays."""
    recorded, current = FILE.read_text(encoding="utf-8").splitlines(), text_of_names().splitlines()
    changes = list(difflib.unified_diff(recorded, current, "promised", "source", n=3, lineterm=""))
    assert not changes, "\n".join([PROMISED, *changes])


def test_file_of_the_names_shows_each_parameter_in_a_line() -> None:
    """So an addition changes no line, and a removal does."""
    lines = text_of_names().splitlines()
    assert "        max_concurrent_jobs: int = 25," in lines
    assert "    async def enqueue(" in lines
    assert "        delay: float | timedelta | None = None," in lines
    assert {line.removeprefix("# ") for line in lines if line.startswith("# ")} == {*PUBLIC_MODULES}
    for module in PUBLIC_MODULES:
        section = "\n".join(lines).partition(f"# {module}\n")[2].partition("\n# ")[0]
        for name in public_names(module):
            assert re.search(rf"^(?:class |(?:async )?def )?{name}\b", section, re.MULTILINE), (module, name)


def test_every_public_name_has_a_docstring() -> None:
    undocumented = []
    for name in set(NAMES) - {"__version__", *TYPE_ALIASES}:
        thing = getattr(pg_scheduler, name)
        own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        if not own or own.startswith(f"{name}("):  # a dataclass's signature is no documentation
            undocumented.append(name)
    assert undocumented == []
    assert all(find("pg_scheduler", name).doc.summary for name in TYPE_ALIASES)


def test_every_error_and_event_is_public_and_has_a_docstring() -> None:
    assert set(errors.__all__) <= set(NAMES)
    for module in (errors, events):
        defined = [
            each
            for each in vars(module).values()
            if inspect.isclass(each) and each.__module__.startswith("pg_scheduler")
        ]
        assert all(vars(each).get("__doc__") for each in defined)
        assert module.__all__ == sorted(module.__all__)
        others = {"JobError", "JobEvent", "JobResult", "JobStatus", "LazyModule", "ScheduleEvent"}
        others.add("UnusableAnnotationError")  # which the module handles, and does not raise
        named = {each.__name__ for each in defined if not each.__name__.startswith("_")}
        assert named - others <= set(module.__all__)


def test_every_error_is_a_scheduler_error_and_in_the_class_tree() -> None:
    tree = errors.__doc__ or ""
    classes = [getattr(errors, name) for name in errors.__all__]
    assert [each for each in classes if not issubclass(each, errors.SchedulerError)] == []
    assert [each for each in classes if each.__name__ not in tree] == []


def test_scheduler_has_the_public_methods_with_docstrings() -> None:
    public = {name for name, _ in inspect.getmembers(Scheduler, callable) if not name.startswith("_")}
    assert public == set(METHODS)
    for name in METHODS:
        method = getattr(Scheduler, name)
        assert method.__doc__, name
        assert inspect.iscoroutinefunction(method) is (name not in PLAIN_METHODS), name


def parameters(function: Callable[..., Any]) -> str:
    """A signature without its annotations."""
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    plain = [each for each in plain if each.name != "self"]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


USUAL = "priority=UNSET, max_retries=UNSET"
RAISE = "conflict_resolution=<ConflictResolution.RAISE: 'raise'>, misfire_grace_time=UNSET"
IGNORE = "conflict_resolution=<ConflictResolution.IGNORE: 'ignore'>"
SETTINGS = (
    "max_concurrent_jobs=25, misfire_grace_time=300, vacuum_config=None, vacuum_enabled=True, "
    "batch_claim_limit=None, polling_config=None, *, schema=None, direct_dsn=None, "
    "keeper_dsn=None, max_crashes=3, max_loop_block=600.0, max_payload_bytes=1048576, "
    "max_result_bytes=1048576, shutdown_timeout=30.0, "
    "lease=None, "
    f"retry_policy={pg_scheduler.RetryPolicy()!r}, executors=None, stop_grace=10.0, max_stuck_threads=0, "
    "role='both', "
    "identity=None, only=(), skip=(), metadata=None, statistics=True, middleware=(), "
    "codec=None, migrations='apply', on_copy='refuse', notify='hint', clock=None"
)
PERIODIC = (
    "use_advisory_lock=False, priority=UNSET, max_retries=UNSET, "
    "job_name=None, dedup_key=None, enabled=True"
    ", *, trigger=None, overlap=<Overlap.ALLOW: 'allow'>, catch_up=CatchUp.latest(), jitter=0, "
    "start=None, end=None, pause_after_failures=None"
)
LATER = (
    "timeout=UNSET, keep_result=UNSET, deadline=UNSET, metadata=None, after=(), after_outcome='completed', "
    "pass_results=False, unique=UNSET"
)
CALLER = "connection=None, notify=None"
SPEC = f"{USUAL}, job_id=None, misfire_grace_time=UNSET, *, {LATER}"
TASK = (
    "timeout=UNSET, misfire_grace_time=UNSET, max_retries=UNSET, retry=None, priority=UNSET, executor=UNSET, "
    "keep_result=UNSET, deadline=UNSET, typed=UNSET, metadata=None, limits=(), share=None, "
    "sequence=None, unique=UNSET, on_failure=None, on_cancel=None, version=UNSET, "
    "chunk=None, chunk_wait=UNSET, chunk_by=None"
)
FOUND = "args=None, kwargs=None, after=None, at=None, tolerance=10.0"
SCHEDULE = f"{USUAL}, job_id=None, {RAISE}"


@each_case(
    ("function", "expected"),
    [
        (Scheduler, f"(db_pool, {SETTINGS})"),
        (Scheduler.start, "()"),
        (Scheduler.shutdown, "()"),
        (Scheduler.initialize_db, "()"),
        (Scheduler.register, f"(func=None, *, name=None, aliases=(), {TASK})"),
        (
            Scheduler.schedule,
            f"(func, *, execution_time, args=(), kwargs=None, {SCHEDULE}, {LATER}, {CALLER})",
        ),
        (
            Scheduler.enqueue,
            f"(func, *, args=(), kwargs=None, delay=None, {SCHEDULE}, {LATER}, {CALLER})",
        ),
        (Scheduler.schedule_bulk, f"(jobs, *, {IGNORE}, batch_size=1000, {CALLER})"),
        (
            Scheduler.schedule_job,
            f"(job_name, execution_time, task_data, {SCHEDULE}, *, {LATER}, {CALLER})",
        ),
        (Scheduler.cancel_job, "(job_id, *, children=False, connection=None)"),
        (
            Scheduler.cancel_jobs,
            (
                "(*, status=None, job_name=None, worker_id=None, due_from=None, due_before=None, "
                "metadata=None, children=False, connection=None)"
            ),
        ),
        (Scheduler.retry_job, "(job_id, *, from_step=None, children=False, connection=None)"),
        (Scheduler.run_job_now, "(job_id, *, connection=None)"),
        (Scheduler.end_sleep, "(job_id)"),
        (Scheduler.signal, "(job_id, name, value=None, *, connection=None)"),
        (Scheduler.send, "(job_id, name, value=None, *, connection=None)"),
        (
            Scheduler.broadcast,
            "(name, value=None, *, job_name=None, metadata=None, job_ids=None, connection=None)",
        ),
        (Scheduler.update_job_status, "(job_id, status)"),
        (Scheduler.subscribe, "(subscriber, *kinds, once=False, cluster=False)"),
        (Scheduler.next_event, "(*kinds, cluster=False, timeout=None)"),
        (Scheduler.events, "(*kinds, cluster=False)"),
        (Scheduler.recover_orphaned_jobs, "()"),
        (Scheduler.periodic_orphan_recovery, "()"),
        (Scheduler.listen_for_jobs, "()"),
        (Scheduler.monitor_heartbeats, "()"),
        (Scheduler.send_heartbeat, "(job_id)"),
        (Scheduler.load_task_functions, "()"),
        (Scheduler.execute_job, "(job_row)"),
        (Scheduler.execute_job_with_concurrency_control, "(job_row)"),
        (Scheduler.run_vacuum, "()"),
        (Scheduler.get_vacuum_stats, "(days=7)"),
        (Scheduler.get_total_vacuum_stats, "()"),
        (Scheduler.get_periodic_jobs, "()"),
        (Scheduler.enable_periodic_job, "(dedup_key)"),
        (Scheduler.disable_periodic_job, "(dedup_key)"),
        (Scheduler.trigger_periodic_job, "(dedup_key)"),
        (Scheduler.get_periodic_job_status, "(dedup_key)"),
        (pg_scheduler.periodic, f"(every=None, cron=None, timezone=None, {PERIODIC})"),
        (pg_scheduler.job, f"(name=None, aliases=(), *, {TASK})"),
        (pg_scheduler.JobSpec, f"(func, execution_time=None, args=(), kwargs=<factory>, {SPEC})"),
        *(
            (getattr(kit, name), expected)
            for kit in (AsyncTestKit, TestKit)
            for name, expected in (
                ("scheduled", f"(func=None, *, {FOUND})"),
                ("assert_scheduled", f"(func, *, {FOUND})"),
                ("assert_not_scheduled", f"(func=None, *, {FOUND})"),
                ("scheduling", "()"),
                ("run_due", "(*, raises=True, timeout=60.0)"),
                ("drain", "(*, raises=True, max_attempts=5000, timeout=60.0)"),
                ("advance", "(by=0, *, days=0, hours=0, minutes=0)"),
                ("run", "(func, *args, **kwargs)"),
            )
        ),
        (AsyncTestKit, "(connection, *, scheduler=None)"),
        (TestKit, "(connection, *, scheduler=None)"),
        (VacuumPolicy.immediate, "()"),
        (VacuumPolicy.after_days, "(days)"),
        (VacuumPolicy.keep_last, "(count)"),
        (VacuumPolicy.never, "()"),
    ],
    ids=lambda each: getattr(each, "__qualname__", ""),
)
def test_public_function_has_its_documented_signature(function: Callable[..., Any], expected: str) -> None:
    assert parameters(function) == expected


@pytest.mark.parametrize(
    ("value", "first_fields"),
    [
        (PeriodicJobConfig, "func interval cron timezone use_advisory_lock priority max_retries job_name"),
        (VacuumConfig, "completed failed cancelled interval_minutes track_metrics expired schedules"),
        (VacuumPolicy, "trigger days keep_count"),
        (PollingConfig, "min_interval max_interval backoff_multiplier idle_start_interval semaphore_full"),
    ],
)
def test_public_value_has_its_fields_in_the_documented_order(value: type, first_fields: str) -> None:
    assert " ".join(inspect.signature(value).parameters).startswith(first_fields)


PRIVATE_PACKAGES = {
    "admission",
    "base",
    "cluster_events",
    "database",
    "facts",
    "importing",
    "integrations",
    "jobs",
    "queue",
    "scheduler",
    "schedules",
    "statistics",
    "streams",
    "steps",
    "telemetry",
    "worker",
}
PRIVATE_MODULES = {"tools", "version"}
"""Modules of which `pg_scheduler` exports the public names, or none."""

COMMAND_LINE = {"__main__", "cli"}
"""Its commands, options and output are the contract, not its names."""

DJANGO_MODULES = {"pg_scheduler.integrations.django", "pg_scheduler.integrations.django.models"}
"""Public modules that need the settings of a project to be imported."""

PROGRAMS = sorted((ROOT / "examples").glob("**/*.py"))
SNIPPETS = [snippet for page in PAGES for snippet in snippets_of(page) if snippet.kind == "python"]


def imported_modules(code: str) -> set[str]:
    """The modules of the package that a program imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names if is_module(node, alias)}
    return {name for name in found if name.split(".")[0] == "pg_scheduler"}


def is_module(node: ast.ImportFrom, alias: ast.alias) -> bool:
    return (ROOT.joinpath(*str(node.module).split("."), alias.name)).with_suffix(".py").exists() or (
        ROOT.joinpath(*str(node.module).split("."), alias.name, "__init__.py").exists()
    )


def test_every_module_of_the_package_is_public_or_private() -> None:
    found = {module.name for module in pkgutil.iter_modules(pg_scheduler.__path__)}
    public = {name.removeprefix("pg_scheduler.") for name in PUBLIC_MODULES if name.count(".") == 1}
    assert found == public | PRIVATE_PACKAGES | PRIVATE_MODULES | COMMAND_LINE
    assert not public & (PRIVATE_PACKAGES | PRIVATE_MODULES | COMMAND_LINE)


def test_documentation_lists_the_public_modules() -> None:
    page = complete_modules()["operations/upgrading"]
    section = page.partition("## Public modules\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)) == PUBLIC_MODULES


def public_modules() -> Iterator[ModuleType]:
    """Yield the public modules whose libraries can be imported: FastAPI wants a newer pydantic than we do."""
    for name in PUBLIC_MODULES:
        try:
            yield importlib.import_module(name)
        except ImportError as error:
            if name != "pg_scheduler.integrations.fastapi" and not is_left_out(error):
                raise


def test_public_class_reports_a_public_module() -> None:
    values = {
        f"{module.__name__}.{each}": getattr(module, each)
        for module in public_modules()
        for each in module.__all__
    }
    classes = {name: value for name, value in values.items() if isinstance(value, type)}
    assert [name for name, value in classes.items() if value.__module__ not in PUBLIC_MODULES] == []


def test_examples_and_snippets_import_public_modules_only() -> None:
    codes = {
        str(snippet): f"async def page() -> None:\n{textwrap.indent(snippet.code, '    ')}\n    ..."
        for snippet in SNIPPETS
    } | {str(path): path.read_text(encoding="utf-8") for path in PROGRAMS}
    public = {*PUBLIC_MODULES, *DJANGO_MODULES}
    private = {place: imported_modules(code) - public for place, code in codes.items()}
    assert {place: modules for place, modules in private.items() if modules} == {}


def test_scheduler_has_the_class_attributes_of_0_2() -> None:
    assert (Scheduler.HEARTBEAT_THRESHOLD, Scheduler.LEASE_DURATION, Scheduler.WORKER_ID_LENGTH) == (
        120,
        60,
        8,
    )


async def idle_pool() -> asyncpg.Pool:
    """A pool that never connects."""
    return asyncpg.create_pool("postgresql://nobody@localhost:1/none", min_size=0, max_size=2)


@pytest.fixture
def never_connected() -> asyncpg.Pool:
    return asyncio.run(idle_pool())


def test_scheduler_can_be_constructed_when_no_event_loop_runs(never_connected: asyncpg.Pool) -> None:
    scheduler = Scheduler(never_connected)
    assert scheduler.db_pool is never_connected
    assert len(scheduler.worker_id) == 8
    assert (scheduler.is_running, scheduler.is_shutting_down) == (False, False)
    assert Scheduler(never_connected).worker_id != scheduler.worker_id
    assert asyncio.run(scheduler.shutdown()) is None, "one that never started has nothing to stop"


def test_subclass_can_override_the_class_attributes(never_connected: asyncpg.Pool) -> None:
    class Ours(Scheduler):
        WORKER_ID_LENGTH = 12

    assert len(Ours(never_connected).worker_id) == 12


GLOBALS = """
import asyncio, atexit, logging, signal, sys, threading, warnings
def state():
    return [
        logging.root.handlers[:], logging.root.level, logging.lastResort, logging.getLoggerClass(),
        [signal.getsignal(each) for each in signal.valid_signals()],
        sys.excepthook, sys.unraisablehook, threading.excepthook, threading.active_count(),
        atexit._ncallbacks(), warnings.showwarning,
    ]
import asyncpg, pydantic, croniter, multiprocessing.util
before = state()
import pg_scheduler
async def pool():
    return asyncpg.create_pool("postgresql://nobody@localhost:1/none", min_size=0, max_size=1)
schedulers = [pg_scheduler.Scheduler(asyncio.run(pool())) for _ in range(2)]
after = state()
assert before == after, [pair for pair in zip(before, after) if pair[0] != pair[1]]
ours = logging.getLogger("pg_scheduler")
assert [type(each) for each in ours.handlers] == [logging.NullHandler], ours.handlers
assert (ours.level, ours.propagate, ours.disabled) == (logging.NOTSET, True, False)
heavy = {"cryptography", "fastapi", "litestar", "rich", "sentry_sdk", "uvloop", "pytest"}
heavy = (heavy | {"pg_scheduler.embedded"}) & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.slow
def test_importing_the_package_and_constructing_a_scheduler_has_no_global_effects() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GLOBALS], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_version_equals_the_installed_one() -> None:
    from importlib.metadata import version

    assert pg_scheduler.__version__ == version("pg-scheduler")
