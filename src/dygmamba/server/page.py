"""The page at `/` and its files, which are part of the package."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from dygmamba.server.problems import Problem

FILES = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}

router = APIRouter(include_in_schema=False)


def _read(name: str) -> bytes:
    return files("dygmamba.server").joinpath("static", name).read_bytes()


@router.get("/")
async def show_page() -> Response:
    return Response(_read("page.html"), media_type="text/html; charset=utf-8")


@router.get("/favicon.ico")
async def send_no_icon() -> Response:
    """Browsers ask for one; without this route each visit would be an error in the log."""
    return Response(status_code=204)


@router.get("/static/{name}")
async def send_file(name: str) -> Response:
    if name not in FILES:
        raise Problem(404, "not-found", "there is no such file")
    return Response(_read(name), media_type=FILES[name])
