"""Python client of the HTTP interface of a core."""

from dsched.client.http import Client

__all__ = ["Client"]
