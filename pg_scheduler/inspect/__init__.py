"""Inspect jobs, workers and tasks: bounded queries, a search language, and explanations of single jobs.

Every query reads a bounded number of rows, whatever the size of the table is, and states what it read.
"""

from pg_scheduler.base.text.remedies import RemedyStep
from pg_scheduler.inspect.audit import AuditPage
from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.deploy import DeployCode, DeployFinding, DeployReport, check
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Diagnosis, Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.errors import ErrorGroup, ErrorGroups
from pg_scheduler.inspect.inspector import Inspector, read_limit, read_limits, read_status
from pg_scheduler.inspect.jobs import Totals
from pg_scheduler.inspect.limits import (
    LimitKeyList,
    LimitKeyState,
    LimitList,
    LimitState,
)
from pg_scheduler.inspect.pages import Bounds, SearchPage
from pg_scheduler.inspect.published import Published, PublishedItem
from pg_scheduler.inspect.reasons import Explanation, Reason, ReasonCode, Verdict
from pg_scheduler.inspect.search.parser import parse_search
from pg_scheduler.inspect.search.terms import Search
from pg_scheduler.inspect.search.words import SearchError
from pg_scheduler.inspect.sequences import SequenceList, SequenceState
from pg_scheduler.inspect.shares import ShareList, ShareState, TenantList, TenantState
from pg_scheduler.inspect.statistics import Statistics
from pg_scheduler.inspect.status import Status, StatusArea
from pg_scheduler.inspect.steps import StepList, StepState
from pg_scheduler.inspect.store.audit import AuditRecord
from pg_scheduler.inspect.store.bulk import ChangeOutcome, JobChange
from pg_scheduler.inspect.store.connections import ReadSettings
from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.inspect.tasks import Backlog, ExpiringJobs, NameBacklog, PausePrice, TaskList, TaskState
from pg_scheduler.jobs.step_retries import StepError

__all__ = [
    "AuditPage",
    "AuditRecord",
    "Backlog",
    "Bounds",
    "ChangeOutcome",
    "DeployCode",
    "DeployFinding",
    "DeployReport",
    "Diagnosis",
    "ErrorGroup",
    "ErrorGroups",
    "ExpiringJobs",
    "Explanation",
    "Finding",
    "FindingCode",
    "Inspector",
    "JobChange",
    "LimitKeyList",
    "LimitKeyState",
    "LimitList",
    "LimitState",
    "NameBacklog",
    "PausePrice",
    "Progress",
    "Published",
    "PublishedItem",
    "ReadSettings",
    "Reason",
    "ReasonCode",
    "RemedyStep",
    "Search",
    "SearchError",
    "SearchPage",
    "SequenceList",
    "SequenceState",
    "Severity",
    "ShareList",
    "ShareState",
    "Statistics",
    "StatisticsRow",
    "Status",
    "StatusArea",
    "StepError",
    "StepList",
    "StepState",
    "TaskList",
    "TaskState",
    "TenantList",
    "TenantState",
    "Thresholds",
    "Totals",
    "UnmadeCheck",
    "Verdict",
    "check",
    "parse_search",
    "read_limit",
    "read_limits",
    "read_status",
]

for _name in __all__:  # tracebacks and docs name the module that users import from
    globals()[_name].__module__ = __name__
