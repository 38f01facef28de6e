"""A TCP proxy on loopback that can lose what a server says."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["TcpProxy"]


class TcpProxy:
    """Passes bytes between clients and `port` of loopback.

    `on_request(data)` sees what a client sends, before the server does; when it returns True, the server gets the bytes
    and its answer to them is lost with the connection.
    """

    def __init__(self, port: int, on_request: Callable[[bytes], bool]) -> None:
        self._target = ("127.0.0.1", port)
        self._on_request = on_request
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in [self._listener, *self._sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has ended already
            finally:
                each.close()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            lost = threading.Event()
            self._spawn(self._forward, client, server, lost)
            self._spawn(self._back, server, client, lost)

    def _forward(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        try:
            while data := client.recv(65536):
                if self._on_request(data):
                    lost.set()
                server.sendall(data)
        except OSError:
            pass
        _end(server)

    def _back(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                if lost.is_set():
                    break
                client.sendall(data)
        except OSError:
            pass
        _end(client)
        _end(server)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
