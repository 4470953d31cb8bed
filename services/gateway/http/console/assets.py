"""The page's files: the same for everybody, without a word about what goes on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing from elsewhere, nothing inline, nobody's frame, and no text that becomes markup.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # asked for each time, and sent only if it has changed
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    content_type: str
    etag: str


class Assets:
    """Reads all files at the start; there are few, and they are small.

    Args:
        folder: its files, with their paths, are what is served.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in CONTENT_TYPES
        }

    @property
    def paths(self) -> list[str]:
        """Of all files."""
        return list(self._assets)

    async def serve(self, request: Request) -> Response:
        """Answers with the file that the path names; with the page where it names none.

        Raises:
            HTTPException: there is no such file.
        """
        asset = self._assets.get(request.path_params.get("path") or "index.html")
        if asset is None:
            raise HTTPException(404, "Not Found")
        headers = HEADERS | {"etag": asset.etag}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers | {"content-type": asset.content_type})


def _read(path: Path) -> _Asset:
    content = path.read_bytes()
    return _Asset(content, CONTENT_TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
