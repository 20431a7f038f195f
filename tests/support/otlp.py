"""A receiver of spans: OTLP over HTTP, as a collector."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Receiver", "receiving"]


class Receiver:
    """The spans that have arrived, with the service that sent them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[tuple[str, Any]] = []

    def add(self, message: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(attributes["service.name"], span) for span in scope.spans]

    def one(self, service: str, name: str) -> Any:
        (span,) = [span for sender, span in self.spans if (sender, span.name) == (service, name)]
        return span


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive spans in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.add(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Write no access log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
