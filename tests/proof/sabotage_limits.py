"""The defences of limits: see sabotage.py."""

from typing import Any

import rowlock.core.limits
import rowlock.stores.limits
import rowlock.stores.postgres.limits
import rowlock.stores.sqlite.claim
import rowlock.stores.sqlite.limits
from rowlock.core.limits import SECOND, Rate, Room
from rowlock.core.moves import Edit
from rowlock.stores.base import Claim
from tests.databases import KINDS
from tests.proof import detectors_limits as red
from tests.proof.sabotage import Defence, Detector, Switch, postgres, replaced, sqlite, wrapped

_LIMITS = {"postgres": rowlock.stores.postgres.limits, "sqlite": rowlock.stores.sqlite.limits}


def _everywhere(name: str, off: Switch, detector: Detector) -> list[Defence]:
    return [Defence(name, store, off, detector) for store in KINDS]


def _alone(claiming: Any) -> Any:
    """Ignore the held jobs of other topics."""

    def sabotaged(lanes: Any, limit: int) -> Any:
        steps = claiming(lanes, limit)
        answer: Any = None
        while True:
            try:
                ask = steps.send(answer)
            except StopIteration as done:
                return done.value
            if isinstance(ask, rowlock.stores.limits.ReadHeld):
                ask = rowlock.stores.limits.ReadHeld([lane.topic for lane in lanes])
            answer = yield ask

    return sabotaged


_whole = property(lambda self: ((round(self.per * SECOND), self.max),))

LIMITS = (
    *_everywhere("limits: all that is held counts", replaced(Room, "free", lambda *_, **__: 10), red.concurrency),
    *_everywhere("limits: by value", replaced(rowlock.core.limits, "value_in", lambda share, by: ""), red.values),
    *_everywhere(
        "limits: shared by name", wrapped(rowlock.stores.limits, "_claiming", _alone), red.shared,
    ),
    *_everywhere("limits: starts are counted", replaced(Room, "counted", lambda self, picks: []), red.rate),
    *_everywhere("limits: burst", replaced(Rate, "windows", _whole), red.burst),
    *_everywhere("limits: never ahead", replaced(Claim, "starting", property(lambda self: self.limit)), red.ahead),
    *_everywhere("limits: the share of an update", replaced(Edit, "implied", property(lambda self: {})),
                 red.share_of_an_update),
    *(
        Defence("limits: the turn is stored", store, replaced(module, "turns_text", lambda turns: "{}"), red.turns)
        for store, module in _LIMITS.items()
    ),
    Defence(
        "limits: cancel_requested is held", "postgres",
        postgres("limits_held", "locked_until IS NOT NULL", "status = 'processing'"), red.cancelling,
    ),
    Defence(
        "limits: cancel_requested is held", "sqlite",
        sqlite(_LIMITS["sqlite"], "limits_held", "locked_until IS NOT NULL", "status = 'processing'"), red.cancelling,
    ),
    Defence(
        "limits: not by the plain claim", "postgres",
        postgres("claim", "WHERE limited))", "WHERE false))"), red.plain,
    ),
    Defence(
        "limits: not by the plain claim", "sqlite",
        sqlite(rowlock.stores.sqlite.claim, "claim_limited", "WHERE limited", "WHERE false"), red.plain,
    ),
    Defence(
        "limits: expired jobs hold up no value", "postgres",
        postgres("limits_shares", "j.expires_at IS NULL OR", "true OR"), red.expired,
    ),
    Defence(
        "limits: expired jobs hold up no value", "sqlite",
        sqlite(_LIMITS["sqlite"], "limits_shares", "expires_at > :now", "expires_at > 0"), red.expired,
    ),
    Defence(
        "limits: paused topics", "postgres",
        postgres("limits limits_take", "paused_at IS NOT NULL", "false"), red.paused,
    ),
    Defence(
        "limits: paused topics", "sqlite",
        sqlite(_LIMITS["sqlite"], "claim_paused", "paused_at IS NOT NULL", "false"), red.paused,
    ),
    Defence(
        "limits: shares of jobs that changed stay", "postgres",
        postgres("set_shares", "j.updated = s.updated", "true"), red.set_shares,
    ),
    Defence(
        "limits: shares of jobs that changed stay", "sqlite",
        sqlite(_LIMITS["sqlite"], "set_shares", "updated = :updated", ":updated"), red.set_shares,
    ),
    # ── Changes between the queries of a claim ──
    Defence(
        "limits: a claim in between", "postgres",
        postgres("limits_take", "epoch = $1::bigint", "$1::bigint >= 0"), red.claim_between,
    ),
    Defence(
        "limits: a change in between", "postgres",
        postgres("set_limited", "SET epoch = epoch + 1", "SET epoch = epoch"), red.change_between,
    ),
    Defence(
        "limits: a pause in between", "postgres",
        postgres("limits_take", "paused_at IS NOT NULL", "false"), red.pause_between,
    ),
    Defence(
        "limits: another share in between", "postgres",
        postgres("limits_take", "coalesce(j.share, '') = s.share", "true"), red.share_between,
    ),
)  # fmt: skip
