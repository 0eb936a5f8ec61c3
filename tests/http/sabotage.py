"""The server's defences. This module can switch off each of them, and names the probe that must turn red then.

Nothing in the product knows of this module: it replaces functions. A sabotage that no longer finds the function to
replace is an error, so none of them can go stale unseen. The numbers are those of the security checklist. A8, A11, A14,
A16, A17 and A20 to A22 are about pages, webhooks, roles, encryption, code, releases and the JavaScript client, not
about the server.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import jwt as library
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

import rowlock.access.redaction
import rowlock.access.short_lived
import rowlock.client.bulk
import rowlock.http.app
import rowlock.http.call
import rowlock.http.cursors
import rowlock.http.enqueue
import rowlock.http.flows
import rowlock.http.jobs
import rowlock.http.redacting
import rowlock.http.respond
import rowlock.http.routes
import rowlock.http.sessions
import rowlock.http.streams
import rowlock.http.tokens
import rowlock.http.workers
from rowlock.access import jwt, passwords, secrets, sessions, superusers
from rowlock.access import settings as access_settings
from rowlock.access.identity import Identity, user
from rowlock.access.record_batches import RecordBatches
from rowlock.access.redaction import Redaction
from rowlock.core import codec, rules
from rowlock.core import rule_binding as binding
from rowlock.core.conditions import Compared, Some
from rowlock.core.templates import read_lane
from rowlock.http import login_attempts, request
from rowlock.http.app import Api
from rowlock.http.authenticate import Authenticator
from rowlock.http.call import Call
from rowlock.http.login_attempts import Attempts, Bound
from rowlock.http.problems import Problem
from rowlock.http.routes import Route
from rowlock.http.settings import ApiSettings
from rowlock.stores import queries
from rowlock.stores.records import Write
from rowlock.stores.sqlite.store import SqliteStore
from tests.http import test_bad_input as bad_input
from tests.http import test_browser_tokens as browsers
from tests.http import test_bulk as bulk
from tests.http import test_cursors as paging
from tests.http import test_edits as edits
from tests.http import test_flows as flows
from tests.http import test_injection as injection
from tests.http import test_job_tokens as job_tokens
from tests.http import test_jwt as of_users
from tests.http import test_login as login
from tests.http import test_matrix as matrix
from tests.http import test_origin as origin
from tests.http import test_redaction as redaction
from tests.http import test_rules_over_http as settings
from tests.http import test_streams as streams
from tests.http import test_worker_protocol as protocol
from tests.http.harness import SECRET, A, B, World, is_problem
from tests.http.oracle import OWN, Target
from tests.http.reader import reading as opened

Switch = Callable[[pytest.MonkeyPatch], None]
Probe = Callable[[Any], Awaitable[None]]


class Defence(Struct, frozen=True):
    """`off` switches the defence off; `probe` is green with it and red without it. `fresh`: the probe needs a database
    without any account, not a world."""

    number: str
    name: str
    off: Switch
    probe: Probe
    store: str = "sqlite"
    fresh: bool = False

    def __str__(self) -> str:
        return f"{self.number}, {self.name}"


# ── Ways to switch a defence off ──


def replaced(owner: Any, name: str, by: Any) -> Switch:
    return lambda patch: patch.setattr(owner, name, by)


def wrapped(owner: Any, name: str, around: Callable[[Any], Any]) -> Switch:
    return lambda patch: patch.setattr(owner, name, around(getattr(owner, name)))


def both(one: Switch, other: Switch) -> Switch:
    def switch_off(patch: pytest.MonkeyPatch) -> None:
        one(patch)
        other(patch)

    return switch_off


def with_case(test: Any, *arguments: Any) -> Probe:
    """Return one case of a test as a probe."""

    async def probe(world: World) -> None:
        await test(world, *arguments)

    return probe


# ── Replacements for what a switch takes away ──


def _nothing(*arguments: Any, **options: Any) -> None:
    return None


async def _nothing_later(*arguments: Any, **options: Any) -> None:
    return None


def _yes(*arguments: Any, **options: Any) -> bool:
    return True


def _never(*arguments: Any, **options: Any) -> bool:
    return False


async def _never_later(*arguments: Any, **options: Any) -> bool:
    return False


def _without_a_scope(identity: Identity) -> Any:
    topics = [Compared("topic", "=", topic) for topic in identity.topics or ()]
    return Some(tuple(topics)) if topics else True


def _uncounted(name: str, *arguments: Any) -> Write:
    return Write("uncounted", name, {})


def _without_bounds(identity: Identity, bound: Any = None) -> Any:
    return rowlock.access.short_lived.Maker(f"{identity.kind} {identity.id}", identity.by, bound=bound)


def _in_the_clear(issue: Any) -> Any:
    def sabotaged(kind: str) -> Any:
        issued = issue(kind)
        return replace(issued, hash=issued.text)

    return sabotaged


def _remembering(get: Any) -> Any:
    known: dict[str, Any] = {}

    async def sabotaged(self: RecordBatches, record_id: str) -> Any:
        if known.get(record_id) is None:
            known[record_id] = await get(self, record_id)
        return known[record_id]

    return sabotaged


class _PlainText:
    def hash(self, password: str) -> str:
        return password

    def verify(self, stored: str, password: str) -> bool:
        return stored == password


def _without_a_dummy(is_right: Any) -> Any:
    async def sabotaged(password: str, stored: str | None) -> bool:
        return stored is not None and bool(await is_right(password, stored))

    return sabotaged


async def _session_without_an_end(self: Authenticator, shown: Any) -> Any:
    store = await self._store()
    for session in await store.records(sessions.KIND, [shown.id]):
        for owner in await store.records(superusers.KIND, [session.data["email"]]):
            return superusers.from_record(owner).identity
    return None


def _without_rotation(begin: Any) -> Any:
    return lambda store, superuser, *, client, old: begin(store, superuser, client=client, old=None)


async def _any_body(self: request.Request) -> bytes:
    data = b""
    while True:
        message = await self._receive()
        data += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return data


def _any_origin(self: Authenticator, asked: request.Request) -> str | None:
    return asked.headers.get("origin")


def _missing_claims_are_empty(patch: pytest.MonkeyPatch) -> None:
    def asks_for_emptiness(name: str, op: Any, values: Any, some: bool) -> Any:
        return binding._with_text(name, op, values[0])

    patch.setattr(binding, "_with_claim", asks_for_emptiness)


def _whoever_comes(create: Any) -> Any:
    async def sabotaged(store: Any, email: str, password: str, *, by: str, **options: Any) -> bool:
        return bool(await create(store, email, password, by=by))

    return sabotaged


def _told_in_full() -> Problem:
    return Problem("internal", repr(sys.exc_info()[1]))


def _without_an_entry(write: Any) -> Any:
    async def sabotaged(self: Any, writes: Any, entry: Any = None) -> Any:
        return await write(self, writes)

    return sabotaged


def _everything_unsaid(new_bulk: Any) -> Any:
    def sabotaged(bulk_id: str, action: str, filter: queries.Filter, **options: Any) -> Any:
        return new_bulk(bulk_id, action, filter, **options | {"everything": filter == queries.Filter()})

    return sabotaged


async def _unverified(self: jwt.Verifier, text: str) -> Identity | None:
    try:
        claims = library.decode(text, options={"verify_signature": False})
        return user({**claims, "id": claims["sub"]})
    except (library.PyJWTError, KeyError, TypeError):
        return None


def _whatever_audience(decode: Any) -> Any:
    def sabotaged(*arguments: Any, options: dict[str, Any], **more: Any) -> Any:
        return decode(*arguments, options={**options, "verify_aud": False}, **more)

    return sabotaged


def _without_an_end(response: Any) -> Any:
    return lambda **given: response(**{**given, "ended": None})


# ── Probes that are not tests themselves ──


def with_patch(test: Any) -> Probe:
    async def probe(world: World) -> None:
        with pytest.MonkeyPatch.context() as patch:
            await test(world, patch)

    return probe


async def _places_for_superusers(world: World) -> None:
    """All callers but superusers have one place together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowlock.http.streams, "MOST", 101)
        async with opened(world, "read token"):
            is_problem(await world.get("manage token", "/api/events?seconds=0"), 429, "streams_taken")
            assert (await world.get("superuser", "/api/events?seconds=0")).status_code == 200


async def _everyone(world: World) -> None:
    await matrix.test_whoever_may_does_and_nobody_else(world, OWN)


async def _undeclared_route(world: World) -> None:
    matrix.test_a_route_that_does_not_say_who_may_call_it_is_an_error_at_start_up(None)


async def _kept_password(world: World) -> None:
    await superusers.create(await world.store(), "new@example.com", "a password of its own", by="test")
    assert "a password of its own" not in await world.place.dump()


async def _unreadable_rule(world: World) -> None:
    await world.enqueue(A)
    await (await world.store()).write_records(
        [Write(access_settings.KIND, access_settings.ID, {"manage_rule": "topic ="})]
    )
    is_problem(await world.get("user A", "/api/jobs", api=world.another_api()), 403)


async def _what_went_wrong(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:

        async def fail(*arguments: Any, **options: Any) -> Any:
            raise RuntimeError("canary")

        patch.setattr(type(world.jobs), "list", fail)
        answer = await world.get("superuser", "/api/jobs")
    assert answer.status_code == 500
    assert "canary" not in answer.text


async def _line_in_the_log(world: World) -> None:
    assert rowlock.http.respond._line("a\nb").isprintable()


async def _speaking_for_another(world: World) -> None:
    await protocol.test_nobody_speaks_for_another(world, protocol.Remote(world))


async def _shown_settings(world: World) -> None:
    assert SECRET not in repr(world.api.settings)


# By checklist number and name: the switch that turns the defence off, and the probe that must turn red then.
SWITCHES: dict[str, dict[str, tuple[Switch, Probe]]] = {
    "A1": {
        "a route says who may": (replaced(rowlock.http.routes, "Access", object), _undeclared_route),
        "who may is checked": (replaced(Api, "_authorize", _nothing), _everyone),
        "by scope": (replaced(Identity, "has", _yes), _everyone),
        "by rule": (replaced(rowlock.http.app, "_is_allowed", _yes), _everyone),
        "read-only changes nothing": (
            replaced(Route, "writes", property(_never)),
            login.test_a_read_only_superuser_sees_but_changes_nothing,
        ),
        "a bounded token stays in bounds": (
            replaced(Identity, "is_bounded", property(_never)),
            matrix.test_a_job_token_learns_nothing_of_topics_and_pauses_none,
        ),
        "a browser's token stays in its scope": (
            replaced(Identity, "reach", property(_without_a_scope)),
            with_case(browsers.test_a_job_of_another_scope_is_out_of_reach, Target("mail", B, "user")),
        ),
        "and in lists and numbers": (
            replaced(Identity, "reach", property(_without_a_scope)),
            browsers.test_lists_numbers_and_streams_have_its_own_jobs_alone,
        ),
        "streams of two scopes share nothing": (
            replaced(Identity, "reach", property(_without_a_scope)),
            with_patch(browsers.test_a_stream_of_another_scope_is_another_view),
        ),
        "its jobs get its scope": (
            replaced(rowlock.http.enqueue, "in_own_scope", lambda call, asked: asked),
            browsers.test_its_jobs_get_its_scope,
        ),
        "it enqueues its own topics": (
            replaced(Call, "_is_in_bounds", _yes),
            browsers.test_topics_are_bound_by_the_token_and_by_the_settings,
        ),
        "rules add nothing to it": (
            replaced(Identity, "is_narrow", property(_never)),
            with_case(browsers.test_it_may_what_it_was_made_for_and_nothing_more, {}, set()),
        ),
        "a back end finds its own tokens alone": (
            replaced(rowlock.http.tokens, "_own_only", _nothing),
            browsers.test_a_back_end_makes_sees_and_revokes_its_own,
        ),
        "a back end can't exceed itself": (
            replaced(rowlock.http.tokens, "maker_of", _without_bounds),
            browsers.test_a_back_end_can_not_exceed_itself,
        ),
        "nor last longer": (
            replaced(rowlock.http.tokens, "maker_of", _without_bounds),
            browsers.test_it_ends_no_later_than_its_maker,
        ),
        "a token claims its own topics": (
            replaced(rowlock.http.workers, "_lanes", lambda call, asked: [read_lane(name) for name in asked]),
            protocol.test_a_token_that_is_for_some_topics_claims_those_alone,
        ),
        "nobody speaks for another's worker": (
            replaced(rowlock.http.workers, "_worker", lambda call, name: name),
            _speaking_for_another,
        ),
        "a cursor tells nothing": (
            replaced(rowlock.http.cursors, "_mixed", lambda key, nonce, data: data),
            paging.hidden_places,
        ),
        "a cursor is for one caller and one question": (
            replaced(rowlock.http.cursors, "_question", lambda call: b""),
            paging.test_a_cursor_is_for_one_caller_and_one_question,
        ),
        "a cursor can't be made up": (
            replaced(rowlock.http.cursors, "_tag", lambda key, nonce, call, hidden: bytes(16)),
            paging.test_a_cursor_is_for_one_caller_and_one_question,
        ),
    },
    "A2": {
        "who waits is looked at again": (
            replaced(Call, "again", _nothing_later),
            protocol.test_a_token_that_is_revoked_gets_nothing_more_though_it_waits,
        ),
        "only hashes are kept": (wrapped(secrets, "issue", _in_the_clear), login.test_no_secret_stands_in_the_database),
        "the secret is compared": (
            replaced(secrets.Shown, "matches", _yes),
            login.test_a_token_that_is_nearly_right_is_refused,
        ),
        "what is revoked is not remembered": (
            wrapped(RecordBatches, "get", _remembering),
            login.test_a_revoked_token_is_refused_by_the_next_request_in_every_process,
        ),
        "signatures are checked": (
            replaced(jwt.Verifier, "identify", _unverified),
            with_case(of_users.test_a_bad_one_is_refused, "no signature, none"),
        ),
        "times of JWTs are times": (
            replaced(jwt, "is_valid_at", _yes),
            of_users.test_a_time_that_is_none_is_refused_and_named,
        ),
        "a JWT is for us": (
            wrapped(library, "decode", _whatever_audience),
            of_users.test_a_token_for_another_audience_is_refused_though_none_is_set,
        ),
    },
    "A3": {
        "passwords are hashed": (replaced(passwords, "_hasher", _PlainText), _kept_password),
        "nobody costs the same": (
            wrapped(passwords, "is_right", _without_a_dummy),
            with_patch(login.test_an_unknown_account_costs_as_much_work_as_a_wrong_password),
        ),
        "guesses are counted": (
            replaced(Attempts, "begin", _nothing),
            login.test_whoever_guesses_must_wait_for_longer_and_longer,
        ),
        "an address has a bound": (
            replaced(login_attempts, "ADDRESS", Bound(1_000_000, 10.0)),
            login.test_an_address_that_tries_many_accounts_must_wait_too,
        ),
        "an account has a bound": (
            replaced(login_attempts, "ACCOUNT", Bound(1_000_000, 60.0)),
            login.test_an_account_at_which_many_addresses_guess_must_wait_too,
        ),
        "guesses lock nobody else out": (
            replaced(login_attempts, "ADDRESS", Bound(50, 300.0)),
            login.test_who_guesses_locks_nobody_else_out,
        ),
        "a bound is not begun anew by one's own login": (
            replaced(login_attempts.Failures, "take_back", login_attempts.Failures.forget),
            login.test_an_account_of_ones_own_is_no_way_to_guess_without_end,
        ),
        "few wait for the check of a password": (
            replaced(login_attempts.Hashing, "check", _nothing),
            with_patch(login.test_one_address_does_not_have_all_places_of_those_who_wait),
        ),
    },
    "A4": {
        "sessions have an end": (
            replaced(Authenticator, "_session", _session_without_an_end),
            login.test_a_session_ends_after_half_a_day_however_much_it_is_used,
        ),
        "another password ends sessions": (
            replaced(Authenticator, "_session", _session_without_an_end),
            login.test_another_password_ends_all_sessions,
        ),
        "a login rotates": (
            wrapped(sessions, "begin", _without_rotation),
            login.test_a_login_makes_a_new_session_and_ends_the_one_before,
        ),
        "logging out counts on the server": (
            replaced(sessions, "end", _nothing_later),
            login.test_logging_out_ends_the_session_on_the_server,
        ),
        "__Host- over https": (
            replaced(rowlock.http.sessions, "cookie_name", lambda _: "rowlock_session"),
            origin.test_over_https_a_cookie_without_the_prefix_is_not_taken,
        ),
    },
    "A5": {
        "a session needs a sign of our page": (
            replaced(Authenticator, "_check_csrf", _nothing),
            origin.test_every_route_that_changes_something_wants_a_sign,
        ),
        "foreign pages are refused": (
            replaced(Authenticator, "_is_own", _yes),
            origin.test_a_page_of_another_origin_is_refused_whoever_it_comes_from,
        ),
        "Sec-Fetch-Site is heeded": (
            replaced(Authenticator, "check_origin", _nothing),
            origin.test_a_browser_that_says_it_comes_from_elsewhere_is_believed,
        ),
        "forms are not read": (
            replaced(request.Request, "body", _any_body),
            origin.test_what_a_form_can_send_is_never_read,
        ),
        "sessions are for our own page": (
            replaced(Authenticator, "_is_other", _never),
            origin.test_credentials_never_go_along_with_another_origin,
        ),
    },
    "A6": {
        "origins are exact": (
            replaced(Authenticator, "check_origin", _any_origin),
            origin.test_a_named_origin_may_and_no_other,
        ),
        "names of hosts are known": (
            replaced(Authenticator, "check_host", _nothing),
            origin.test_a_foreign_name_that_leads_here_gets_nothing,
        ),
    },
    "A7": {
        "a body has a bound": (
            replaced(request, "LARGEST_BODY", 1 << 22),
            bad_input.test_a_body_that_never_ends_is_refused_while_it_comes_in,
        ),
        "depth has a bound": (
            replaced(codec, "MAX_DEPTH", 1000),
            bad_input.test_a_bomb_does_not_go_off,
        ),
        "a page has a bound": (
            replaced(queries, "MAX_LIMIT", 1 << 20),
            bad_input.test_a_wrong_parameter_is_named,
        ),
        "a job token's life has a bound": (
            replaced(rowlock.http.tokens, "LONGEST_TOKEN", 1e9),
            bad_input.test_a_job_token_does_not_live_for_ever,
        ),
        "a maker's job tokens have a bound": (
            replaced(rowlock.access.short_lived, "BY_RULE", rowlock.access.short_lived.Bound(10_000, 10_000)),
            job_tokens.test_a_user_makes_a_hundred_and_twenty_of_them_for_one_job,
        ),
        "a browser's tokens have a bound": (
            replaced(rowlock.access.short_lived, "_counted", _uncounted),
            with_patch(browsers.test_of_many_that_are_asked_for_at_once_no_more_are_made),
        ),
        "a scope's streams have a bound": (
            replaced(Identity, "caller", property(lambda identity: (identity.kind, identity.id))),
            with_patch(browsers.test_new_tokens_bring_a_scope_no_further_streams),
        ),
        "one token's streams have a bound": (
            replaced(rowlock.http.streams, "MOST_OF_ONE", 1000),
            with_patch(streams.test_one_token_does_not_take_all_streams),
        ),
        "superusers have streams": (replaced(rowlock.http.streams, "RESERVED", 0), _places_for_superusers),
        "a stream that is over has no place": (
            wrapped(rowlock.http.streams, "Response", _without_an_end),
            streams.test_a_connection_that_breaks_before_the_stream_begins_leaves_no_place,
        ),
        "a header stands there once": (
            replaced(request, "_ONCE", ()),
            bad_input.test_a_header_that_decides_something_may_stand_there_once,
        ),
        "everything must be said": (
            wrapped(rowlock.client.bulk, "new_bulk", _everything_unsaid),
            bulk.test_what_is_wrong_is_named_and_nothing_is_kept,
        ),
        "a page of a bulk action has a bound": (
            replaced(queries, "MAX_LIMIT", 1 << 20),
            bulk.test_a_wrong_parameter_is_named,
        ),
    },
    "A9": {
        "paths in payloads are checked": (
            replaced(queries, "_paths", tuple),
            injection.test_a_payload_path_is_a_path_of_names,
        ),
        "ids of records are checked": (
            replaced(secrets, "is_id", _yes),
            bad_input.test_a_malformed_id_is_refused,
        ),
    },
    "A10": {
        "a rule that can't be read denies": (
            replaced(access_settings, "_NOBODY", rules.Rule("true", True)),
            _unreadable_rule,
        ),
        "what is not there matches nothing": (
            _missing_claims_are_empty,
            settings.test_jobs_without_a_scope_are_nobodys,
        ),
        "an edited job is judged like a new one": (
            replaced(rowlock.http.jobs, "_check_edited", _nothing),
            with_case(edits.test_the_new_content_must_satisfy_enqueue_rule, "update"),
        ),
    },
    "A12": {
        "one is the first": (
            wrapped(superusers, "create", _whoever_comes),
            login.test_of_fifty_who_use_the_link_at_once_one_becomes_the_superuser,
        ),
        "then there is nothing there": (
            replaced(superusers, "is_set_up", _never_later),
            login.test_the_link_works_once_and_then_there_is_nothing_there,
        ),
    },
    "A13": {
        "what is out of reach is not there": (
            replaced(rowlock.http.call, "holds", _yes),
            matrix.test_a_tenant_sees_nothing_of_anothers_jobs,
        ),
        "lists are narrowed": (
            replaced(rowlock.http.call.Call, "reach", _yes),
            matrix.test_no_filter_counts_or_finds_anothers_jobs,
        ),
        "numbers are narrowed": (
            replaced(rowlock.http.call.Call, "reach", _yes),
            matrix.test_stats_count_ones_own_jobs_alone,
        ),
        "what is in the way is not told": (
            replaced(rowlock.http.enqueue, "refuse_hidden", _nothing_later),
            matrix.test_a_key_or_id_of_anothers_job_tells_nothing_about_it,
        ),
        "a flow waits for no hidden job": (
            replaced(rowlock.http.flows, "hidden_jobs", _nothing_later),
            flows.test_a_hidden_job_is_no_parent_and_no_holder,
        ),
        "each job of a flow is judged": (
            replaced(rowlock.http.flows, "check_new", _nothing),
            flows.test_the_right_to_enqueue_is_judged_for_each_job,
        ),
        "a flow shows nothing that is redacted": (
            replaced(rowlock.http.flows, "check_results", _nothing),
            flows.test_no_flow_shows_what_is_redacted,
        ),
    },
    "A15": {
        "what went wrong is not told": (replaced(rowlock.http.respond, "internal", _told_in_full), _what_went_wrong),
        "a path is one line of the log": (replaced(rowlock.http.respond, "_line", str), _line_in_the_log),
        "settings don't show their secret": (
            replaced(ApiSettings, "__repr__", lambda self: repr(msgspec.structs.asdict(self))),
            _shown_settings,
        ),
        "what is redacted is not shown": (
            replaced(Redaction, "fits", _never),
            redaction.test_no_secret_leaves_by_any_route,
        ),
        "nor are its values elsewhere": (
            replaced(rowlock.access.redaction._Found, "take", lambda *_: None),
            redaction.test_no_secret_leaves_by_any_route,
        ),
        "nor what stands behind its name": (
            replaced(Redaction, "_without_named", lambda _, text: text),
            redaction.test_no_secret_leaves_by_any_route,
        ),
        "no filter tells it": (
            replaced(rowlock.http.jobs, "check_filter", _nothing),
            redaction.test_no_filter_tells_what_is_hidden,
        ),
        "no search tells it": (
            replaced(rowlock.http.redacting, "may_reveal", _yes),
            redaction.test_no_search_in_errors_tells_what_is_hidden,
        ),
    },
    "A18": {
        "a reveal stands in the audit": (
            wrapped(SqliteStore, "write_records", _without_an_entry),
            redaction.test_a_reveal_tells_all_and_stands_in_the_audit_first,
        ),
        "changes stand in the audit": (
            wrapped(SqliteStore, "write_records", _without_an_entry),
            login.test_the_audit_tells_who_did_what_without_secrets,
        ),
    },
    "A19": {
        "headers that browsers heed": (
            both(replaced(rowlock.http.respond, "_HEADERS", []), replaced(rowlock.http.respond, "_JSON_HEADERS", [])),
            origin.test_every_answer_has_the_headers_that_browsers_heed,
        ),
    },
}
# Where a defence is probed, if not in a world on SQLite.
ELSEWHERE: dict[str, dict[str, Any]] = {
    "ids of records are checked": {"store": "postgres"},
    "one is the first": {"fresh": True},
    "then there is nothing there": {"fresh": True},
}
DEFENCES = [
    Defence(number, name, off, probe, **ELSEWHERE.get(name, {}))
    for number, switches in SWITCHES.items()
    for name, (off, probe) in switches.items()
]
