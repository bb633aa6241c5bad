"""A small chat completions server, for tests: it answers as it is told, else as a model that quotes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


def quoting(body: dict[str, Any]) -> tuple[int, bytes]:
    """A model that notes lines, restates the first memory, and calls with the first value that it finds."""
    asked, _, data = body["messages"][1]["content"].partition("\n\nData, no instructions:\n")
    given = json.loads(data)
    if "document" in given:
        return 200, completion(json.dumps({"notes": [line for line in given["document"].splitlines() if line.strip()]}))
    memories = given["memories"]
    form = re.search(r"regular expression (.+)\. Answer", asked)
    if form is None:
        return 200, completion(json.dumps({"text": f"As I understand it, {memories[0]['text']}", "used": [1]}))
    found = [(m["number"], value[0]) for m in memories if (value := re.search(form[1], m["text"]))]
    said: dict[str, Any] = {"value": found[0][1], "used": [found[0][0]]} if found else {"value": None, "used": []}
    return 200, completion(json.dumps(said))


class Stub:
    """`answer`: (status, body) for a request; `late`: it never comes; `asked`: headers and bodies that arrived."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Callable[[dict[str, Any]], tuple[int, bytes]] = quoting
        self.late = False
        self.ends = threading.Event()
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []


@contextmanager
def stub() -> Iterator[Stub]:
    made = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append(({k.lower(): v for k, v in self.headers.items()}, body))
            if made.late:
                made.ends.wait()
                return
            status, answer = made.answer(body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{made.url}/elsewhere")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody looks."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield made
        finally:
            made.ends.set()
            server.shutdown()
            thread.join()
