"""The routes under /v1: events in, scores, rankings, classifications and explanations out."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from dygmamba.core.progress import Progress
from dygmamba.engine.shortlist import MAX_EXACT
from dygmamba.live.live_view import LiveView
from dygmamba.runs.queries import Predictions
from dygmamba.server import schemas
from dygmamba.server.formats import (
    EVENTS_BODY_SCHEMA,
    JSON_TYPE,
    parse_content_type,
    parse_json,
    read_events,
    require_few_rows,
)
from dygmamba.server.problems import PROBLEM_TYPE, Problem
from dygmamba.server.service import LiveService, describe_missing_history, list_rows

PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error as a problem document (RFC 9457).",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
}


def get_service(request: Request) -> LiveService:
    return request.app.state.service


def require_json(request: Request) -> None:
    """Refuse bodies of another type: a form of another website could send those without asking."""
    if parse_content_type(request.headers.get("content-type", "")) != JSON_TYPE:
        raise Problem(415, "unsupported-media-type", f"give the body as {JSON_TYPE}")


Service = Annotated[LiveService, Depends(get_service)]
BODIES = (schemas.ScoreRequest, schemas.RankRequest, schemas.ClassifyRequest, schemas.ExplainRequest)
SCHEMA_PATH = "#/components/schemas/{model}"


def read_body(schema: type[schemas.Body]) -> Any:
    """Return the dependency that parses a body; FastAPI would parse it on the event loop, whatever its size."""

    async def read(request: Request, service: Service) -> schemas.Body:
        return await service.parse(partial(parse_json, schema), await request.body())

    return Depends(read)


def describe_query(body: type[schemas.Body], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a route for a query: its body is JSON; /openapi.json shows it and the answer."""
    content = {JSON_TYPE: {"schema": {"$ref": SCHEMA_PATH.format(model=body.__name__)}}}
    extra = {"requestBody": {"required": True, "content": content}}
    return {"dependencies": [Depends(require_json)], "openapi_extra": extra, "responses": {200: answer}}


def list_queries(body: schemas.ScoreRequest) -> list[schemas.PairQuery]:
    return [
        schemas.PairQuery(
            str(pair.src),
            str(pair.dst),
            body.at if pair.time is None else pair.time,
            tuple(sorted((pair.__pydantic_extra__ or {}).items())),
        )
        for pair in body.pairs
    ]


router = APIRouter(prefix="/v1", responses=PROBLEM_RESPONSES)


@router.post(
    "/events",
    summary="Append events to the log.",
    openapi_extra={"requestBody": EVENTS_BODY_SCHEMA},
    responses={200: {"model": schemas.EventsResponse}},
)
async def append_events(
    request: Request,
    service: Service,
    verdicts: Annotated[
        Literal["refused", "all"], Query(description="List the refused events only, or all.")
    ] = "refused",
) -> Response:
    """Accepted events are on disk when the answer comes. An event that is refused does not spoil the others."""
    _ = service.live  # answers 503 before the body is read
    kind, most = request.headers.get("content-type", ""), service.settings.max_rows
    events = await service.parse(lambda body: read_events(body, kind, most), await request.body())
    acknowledgement = await service.append(events)
    listed = [
        {"index": one.index, "status": one.status, "sequence": one.sequence, "message": one.message or ""}
        for one in acknowledgement.verdicts
        if verdicts == "all" or one.status != "accepted"
    ]
    return JSONResponse(
        {"sequence": acknowledgement.sequence, "accepted": acknowledgement.accepted, "verdicts": listed}
    )


@router.post(
    "/score", summary="Score pairs.", **describe_query(schemas.ScoreRequest, {"model": schemas.ScoreResponse})
)
async def score_pairs(
    body: Annotated[schemas.ScoreRequest, read_body(schemas.ScoreRequest)], service: Service
) -> Response:
    """A score is the probability that the pair is a real event and not a random one."""
    found = await service.score(list_queries(body), body.min_sequence)
    rows = [
        {"src": pair.src, "dst": pair.dst, "time": time, found.name: score}
        for pair, time, score in zip(body.pairs, found.times, found.scores, strict=True)
    ]
    return JSONResponse({"scores": rows, "sequence": found.sequence})


@router.post(
    "/rank",
    summary="Rank the likeliest destinations of sources, or sources of destinations.",
    **describe_query(schemas.RankRequest, {"model": schemas.RankResponse}),
)
async def rank_destinations(
    body: Annotated[schemas.RankRequest, read_body(schemas.RankRequest)], service: Service
) -> Response:
    """Rows are sorted by source and rank; `probability` is that of being the true destination."""
    given = body.sources if body.destinations is None else body.destinations
    if given is None or (body.sources, body.destinations).count(None) != 1:
        raise Problem(422, "sources-and-destinations", "give either `sources` or `destinations`")
    ids, side = list(dict.fromkeys(map(str, given))), "src" if body.sources is None else "dst"
    candidates = None if body.candidates is None else list(map(str, body.candidates))

    def count_candidates(view: LiveView, _: Progress) -> int:
        return (
            len(view.predictor.query_parser.read_candidates(None, side))
            if candidates is None
            else len(candidates)
        )

    def rank(view: LiveView, part: Sequence[str], progress: Progress) -> Predictions:
        sources, destinations = (part, None) if side == "dst" else (None, part)
        return view.predictor.rank(
            sources, destinations, body.k, body.at, candidates, body.only_new, progress
        )

    count = (await service.query(count_candidates)).result
    service.require_affordable(len(ids), min(count, MAX_EXACT) if candidates is None else count, body.k)
    found, sequence = await service.query_parts(ids, rank, body.min_sequence)
    rows = list_rows([part.table for part in found])
    shortlists = dict.fromkeys(part.shortlist for part in found if part.shortlist)
    notes = [*describe_missing_history(found), *shortlists]
    return JSONResponse({"ranking": rows, "sequence": sequence, "notes": notes})


@router.post(
    "/classify",
    summary="Classify nodes, with a run of the node task.",
    **describe_query(schemas.ClassifyRequest, {"model": schemas.ClassifyResponse}),
)
async def classify_nodes(
    body: Annotated[schemas.ClassifyRequest, read_body(schemas.ClassifyRequest)], service: Service
) -> Response:
    """A score is the probability that the state of the node is 1."""
    nodes = None if body.nodes is None else list(map(str, body.nodes))
    require_few_rows(len(nodes or ()), "nodes", service.settings.max_rows)
    if nodes is None or body.k is not None:  # ranked, hence in one go
        answer = await service.query(
            lambda view, progress: view.classify(nodes, body.at, body.k, progress=progress), body.min_sequence
        )
        tables, sequence = [answer.result], answer.sequence
    else:
        tables, sequence = await service.query_parts(
            nodes,
            lambda view, part, progress: view.classify(part, body.at, progress=progress),
            body.min_sequence,
        )
    require_few_rows(sum(map(len, tables)), "nodes in its answer (see `k`)", service.settings.max_answer_rows)
    return JSONResponse({"nodes": list_rows(tables), "sequence": sequence})


@router.post(
    "/explain",
    summary="Explain the score of a pair or a node.",
    **describe_query(
        schemas.ExplainRequest, {"description": "The explanation, as `dygmamba explain` prints it as JSON."}
    ),
)
async def explain_score(
    body: Annotated[schemas.ExplainRequest, read_body(schemas.ExplainRequest)], service: Service
) -> Response:
    """The contributions of past events and the base add up to the logit."""
    pair = str(body.src) if body.dst is None else (str(body.src), str(body.dst))
    found = await service.query(
        lambda view, _: view.explain(pair, body.at, orders=body.orders, columns=body.columns),
        body.min_sequence,
    )
    return JSONResponse({"explanation": found.result.to_json(body.top), "sequence": found.sequence})


@router.get("/status", summary="Describe the run, the rate of events, and the quality of scores over time.")
async def show_status(service: Service) -> Response:
    live = service.live
    return JSONResponse(await asyncio.to_thread(service.status.describe, live))
