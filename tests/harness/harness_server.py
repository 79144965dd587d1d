"""A server on the loopback that answers as the test says."""

import http.server
import json
import threading
from contextlib import contextmanager


@contextmanager
def answering(answer, keys=None):
    """`answer(path, request)` -> (status, JSON); a GET has no request. `keys` takes the keys that were shown."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(*answer(self.path, None))

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(*answer(self.path, json.loads(body)))

        def reply(self, status, document):
            if keys is not None:
                keys.add(self.headers["Authorization"])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
