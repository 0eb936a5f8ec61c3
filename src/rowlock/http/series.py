"""Routes of charts."""

from __future__ import annotations

from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.stores.series import Series


async def get_series(call: Call) -> Response:
    asked: shapes.SeriesQuery = call.query
    if call.identity.topics is not None and asked.topic not in call.identity.topics:
        raise denied(call.identity, "this token is for some topics: name one of them", field="topic")
    series = await call.api.jobs.series(
        asked.topic, range=asked.range, since=asked.since, until=asked.until, step=asked.step
    )
    return answer(series)


ROUTES = [
    Route(
        method="GET", path="/api/stats/series", access=scope("read", bounded=True), handler=get_series,
        summary="What happened when: jobs that came and ended, how long they waited and ran",
        query=shapes.SeriesQuery, answers=(Series,),
    ),
]  # fmt: skip
