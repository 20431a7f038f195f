"""Each condition of a search selects the rows that match, and no others, on a real table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pg_scheduler.inspect import parse_search
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.store.searches import Scan
from pg_scheduler.inspect.store.store import InspectionStore
from tests.support.inside import Store
from tests.support.store import NOW, Pool

ROWS = """
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, worker_id, attempt, finished_at, error_message, priority,
        crash_count, created_at, task_data, options, blocked_on
    )
    SELECT id, name, $1::timestamptz + due * interval '1 hour', status, worker, attempt,
        $1 + finished * interval '1 hour', error, priority, crashes, $1 - created * interval '1 hour',
        data::jsonb, options::jsonb, blocked
    FROM (VALUES
        ('a', 'mail.send', -2, 'failed', 'w1', 3, -1, 'TimeoutError: Timed out', 5, 0, 48,
         '{"args": ["ada", 1.5, [true]], "kwargs": {"user": {"id": 42}}, "metadata": {"tags": ["billing"]}}',
         '{"schedule_id": "daily"}', NULL),
        ('b', 'mail.send', -1, 'running', 'w2', 1, NULL, NULL, 1, 1, 2,
         '{"args": ["Ada"], "kwargs": {"user": {"id": "42"}}, "metadata": {"tenant": "acme", "a.b": 1}}',
         NULL, NULL),
        ('c', 'report_100%', 1, 'pending', NULL, 0, NULL, NULL, 8, 0, 1,
         '{"args": [], "kwargs": {"user": 42}, "metadata": {"tags": "billing", "tenant": "acme-2"}}',
         '{"schedule_id": "weekly", "steps": 1}', 'limit:stripe:7'),
        ('d', 'reportX100', -3, 'pending', NULL, 2, NULL, 'old', 3, 2, 0,
         '"encoded"', '{"steps": 1}', NULL),
        ('e', 'stop', -9, 'completed', 'w1', 1, -8, NULL, 5, 3, 9,
         '{"args": [null], "metadata": {"tags": [null, 5]}}', NULL, NULL),
        ('f', 'stop', 5, 'pending', NULL, 0, NULL, NULL, 5, 0, 9, '{}', NULL, 'limit:stripe.eu:'),
        ('g', 'stop', -5, 'pending', NULL, 0, NULL, NULL, 5, 0, 9, '{}', NULL, 'after')
    ) AS each (
        id, name, due, status, worker, attempt, finished, error, priority, crashes, created, data,
        options, blocked
    )
"""


STEPS = """
    INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at)
    SELECT id, name, kind, value::jsonb, 1, now(), CASE WHEN has_ended THEN now() END
    FROM (VALUES
        ('c', 'approval', 'signal', NULL, false),
        ('c', 'charge', 'step', '1', true),
        ('c', 'reminder', 'signal', '1', true),
        ('d', 'Approval', 'sleep', NULL, false),
        ('d', 'pack', 'child', '["d:pack:0", "d:pack:1"]', false),
        ('d', 'ship', 'child', '"ship:7"', false),
        ('d', 'print', 'child', '"print:7"', true),
        ('d', 'lines', 'cursor', '7', false),
        ('g', 'approval', 'signal', NULL, false)
    ) AS each (id, name, kind, value, has_ended)
"""
"""What jobs wait for, besides steps that have ended, and the rest of an older job of an id (g)."""


async def find(store: Store, text: str) -> str:
    search, searches = parse_search(text, now=NOW, tz=UTC), InspectionStore(store).searches
    async with searches.transaction() as connection:
        examined = await searches.newest(None, Scan(conditions_of(search), 100, 100), on=connection)
    assert examined.count == 7
    return "".join(job.job_id for job, _ in reversed(examined.jobs))


CASES = [
    ("", "abcdefg"),
    ("status:failed", "a"),
    ("status:pending", "cdfg"),
    ("status:due", "d"),
    ("status:blocked", "cfg"),
    ("status:due,running", "bd"),
    ("-status:pending", "abe"),
    ("name:mail.send", "ab"),
    ("name:mail", ""),
    ("name:mail*,stop", "abefg"),
    ("name:~MAIL", "ab"),
    ("name:report_100%", "c"),
    ("name:report?100*", ""),
    ("-name:mail.*", "cdefg"),
    ("id:a,c", "ac"),
    ("id:~A", "a"),
    ("worker:w1", "ae"),
    ("-worker:w1", "bcdfg"),
    ("worker:w*", "abe"),
    ("schedule:daily", "a"),
    ("schedule:*", "ac"),
    ("-schedule:*ly", "bdefg"),
    ("priority:critical,low", "bc"),
    ("-priority:normal", "bcd"),
    ("error:~timed", "a"),
    ('error:"TimeoutError: Timed out"', "a"),
    ("error:timeout*", ""),
    ("error:Timeout*,old", "ad"),
    ("-error:*", "bcefg"),
    ("due:<-1h", "adeg"),
    ("due:>=-1h", "bcf"),
    ("due:now..", "cf"),
    ("due:..-4h,>+4h", "efg"),
    ("created:>-3h", "bcd"),
    ("-created:>-3h", "aefg"),
    ("finished:<now", "ae"),
    ("finished:-2h..", "a"),
    ("-finished:..now", "bcdfg"),
    ("attempt:>2", "a"),
    ("attempt:1..2", "bde"),
    ("attempt:0", "cfg"),
    ("-attempt:0", "abde"),
    ("crashed:yes", "bde"),
    ("crashed:no", "acfg"),
    ("crashed:>1", "de"),
    ("arg.user.id:42", "ab"),
    ("arg.user:42", "c"),
    ("-arg.user.id:42", "cdefg"),
    ("arg.0:ada", "a"),
    ("arg.0:~ADA", "ab"),
    ("arg.0:*", "ab"),
    ("arg.1:1.5", "a"),
    ("arg.2.0:true", "a"),
    ("any:42", "abc"),
    ("-any:42", "defg"),
    ("any:~ada", "ab"),
    ("metadata.tenant:acme", "b"),
    ("metadata.tenant:acme*", "bc"),
    ('metadata."a.b":1', "b"),
    ("tag:billing", "a"),
    ("tag:5", "e"),
    ("-tag:~BILL", "bcdefg"),
    ("limit:stripe", "c"),
    ("limit:stripe:7", "c"),
    ("limit:stripe:8", ""),
    ("limit:stripe*", "cf"),
    ("limit:~EU", "f"),
    ("-limit:*", "abdeg"),
    ("step:approval", "c"),
    ("step:~approval", "cd"),
    ("step:pack,charge", "d"),
    ("step:lines,print,reminder", ""),
    ("-step:*", "abefg"),
    ("signal:approval", "c"),
    ("signal:~APPROVAL", "c"),
    ("signal:reminder", ""),
    ("-signal:*", "abdefg"),
    ("child:ship:7", "d"),
    ("child:d:pack:*", "d"),
    ("child:print:7,pack", ""),
    ("-child:*", "abcefg"),
    ("mail", "ab"),
    ("STOP", "efg"),
    ("-stop", "abcd"),
    ("mail,report", "abcd"),
    ("mail a", "ab"),
    ("name:mail.* -worker:w1 priority:critical", "b"),
]


async def test_search_selects_the_rows_that_match(store: Store, pool: Pool) -> None:
    await pool.execute(ROWS, NOW)
    await pool.execute(STEPS)
    assert [(text, await find(store, text)) for text, _ in CASES] == CASES


def test_cases_cover_every_field_and_its_negation() -> None:
    def used(mark: str) -> set[str]:
        texts: Sequence[str] = [text for text, _ in CASES]
        return {
            field for field in FIELDS if any(f"{mark}{field.partition('<')[0]}" in each for each in texts)
        }

    assert used("") == set(FIELDS)
    missing = set(FIELDS) - used("-")
    assert missing == {"id", "due", "crashed", "metadata.<name>"}


async def test_search_continues_before_the_last_row_that_was_examined(store: Store, pool: Pool) -> None:
    await pool.execute(ROWS, NOW)
    conditions = conditions_of(parse_search("name:mail.*", now=NOW))
    searches = InspectionStore(store).searches
    async with searches.transaction() as connection:
        page = await searches.newest(None, Scan(conditions, 9, 4), on=connection)
        assert (page.jobs, page.count) == ([], 4)
        assert page.last is not None
        assert page.last.job_id == "d"
        page = await searches.newest("d", Scan(conditions, 1, 4), on=connection)
        assert [(job.job_id, count) for job, count in page.jobs] == [("b", 2)]
        assert page.count == 2
        page = await searches.newest("a", Scan(conditions, 1, 4), on=connection)
        assert (page.jobs, page.last, page.count) == ([], None, 0)
