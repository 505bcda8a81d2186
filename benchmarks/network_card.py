"""A network card on loopback: all connections to a server together have one rate, and may break.

    python network_card.py PORT BYTES_PER_SECOND CUT_NBYTES

passes connections on to the server at a port until its standard input ends, and first prints its
own port. A rate or a length of zero is none. Responses go through a pipe in the kernel, so that
hundreds of megabytes a second cost little of a processor.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress

PIECE_NBYTES = 128 << 10


class Card:
    """What all connections share."""

    def __init__(self, port: int, rate_nbytes: float, cut_nbytes: int) -> None:
        self.port = port
        self.rate_nbytes = rate_nbytes
        self.cut_nbytes = cut_nbytes
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait_for(self, nbytes: int) -> None:
        """Wait until so many bytes may pass."""
        if not self.rate_nbytes:
            return
        with self._lock:
            now_s = time.monotonic()
            # A pause is no credit, beyond what a scheduler's turn takes.
            self._free_at_s = max(self._free_at_s, now_s - 0.005) + nbytes / self.rate_nbytes
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)

    def serve(self, client: socket.socket) -> None:
        """Pass one connection on, in both directions."""
        # What is in buffers when a connection is cut has been sent, and will not arrive.
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_NBYTES)
        server.connect(("127.0.0.1", self.port))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
        source, target = os.pipe()
        num_sent = 0
        try:
            while wanted := min(PIECE_NBYTES, (self.cut_nbytes or sys.maxsize) - num_sent):
                count = os.splice(server.fileno(), target, wanted)
                if not count:
                    break
                self.wait_for(count)
                num_sent += count
                while count:
                    count -= os.splice(source, client.fileno(), count)
        except OSError:
            pass  # one of them hung up
        finally:
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            os.close(source)
            os.close(target)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)


def main(port: str, rate_nbytes: str, cut_nbytes: str) -> None:
    """Serve until standard input ends."""
    card = Card(int(port), float(rate_nbytes), int(cut_nbytes))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=card.serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
