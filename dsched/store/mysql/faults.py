"""What an error of the server or of the driver means for a transaction, and for somebody who starts a core."""

import socket
import ssl
from enum import Enum, auto
from typing import Final

import pymysql

from dsched.errors import ConfigError, DschedError, StoreUnavailable

__all__ = ["DRIVER_ERRORS", "RIGHTS", "Fault", "code_of", "is_answer", "judge", "refusal", "text_of", "will_stay"]

DRIVER_ERRORS: Final = (pymysql.err.Error, OSError)
"""What PyMySQL raises when it is the server's, the network's or the statement's fault."""


class Fault(Enum):
    """What to do about an error."""

    LOST = auto()
    """The connection is gone; another one may work at once."""
    CONFLICT = auto()
    """The transaction met another one and may be repeated."""
    CONTENT = auto()
    """What was written can never be stored."""
    AWAY = auto()
    """The server does not do its work now; only time helps, or people."""


_LOST: Final = frozenset(
    {
        2006,  # server has gone away
        2013,  # lost connection during query
        2055,  # lost connection, with the system's error
        4031,  # MySQL: disconnected because of inactivity
        1927,  # MariaDB: connection was killed
        1317,  # query was interrupted
        1158, 1159, 1160, 1161, 1184,  # network errors that the server saw
    }
)  # fmt: skip
_CONFLICT: Final = frozenset(
    {
        1213,  # deadlock; also what a cluster answers to a COMMIT that another node has beaten
        1205,  # lock wait timeout
        1020,  # MariaDB: record has changed since it was read
    }
)
_CONTENT: Final = frozenset(
    {
        1062, 1586, 1022, 1169,  # duplicate
        1048, 1364, 1138, 1263,  # null, or no value
        1264, 1690, 1916,  # number out of range
        1366, 1300, 1292, 1265, 1411, 1441, 1416,  # not a value of that type
        1406, 1118, 1153, 139,  # too long, row or packet too large
        1216, 1217, 1451, 1452, 4025, 3819,  # constraints
        1064, 1058, 1136, 1436, 1390,  # a statement that cannot be
    }
)  # fmt: skip
_PASSING: Final = frozenset(
    {
        1021, 1030, 1037, 1038, 1041, 1114, 1135, 1180,  # disk, memory, threads
        1040, 1203, 1226,  # too many connections
        1047, 1053, 1077, 1079, 1290, 1792, 1836,  # shutting down, read-only, no quorum
        1969, 3024,  # took too long
    }
)  # fmt: skip
"""Answers that will be others some time later."""
RIGHTS: Final = frozenset({1044, 1142, 1143, 1227, 1370})
"""What is said about rights has advice of its own."""
_LOGIN_REFUSED: Final = 1045
_ADVICE: Final = {
    1044: "this user may not use that database: GRANT ALL ON DATABASE.* TO the user",
    _LOGIN_REFUSED: "the server refuses this login: look at user, password, and from where the user may log in",
    1049: "there is no such database: CREATE DATABASE it, or name another one",
    1130: "the server takes no logins from this host: CREATE USER 'name'@'this host'",
    1142: "this user lacks a right on the tables: GRANT ALL ON DATABASE.* TO the user",
    1143: "this user lacks a right on a column: GRANT ALL ON DATABASE.* TO the user",
    1227: "this user lacks a right: GRANT ALL ON DATABASE.* TO the user",
    1251: "the server wants a login that this driver does not know",
    1370: "this user lacks a right: GRANT ALL ON DATABASE.* TO the user",
    1524: "the server wants a login that it has no plugin for",
    1698: "the server refuses this login: this user has no password of its own, make another user",
    1820: "the password of this user must be changed first",
    1862: "the password of this user has expired",
    2026: "TLS was asked for and the server does not offer it: turn it on there, or use tls=off",
    2059: "the server wants a login that this driver does not know",
    3118: "the account of this user is locked",
    3159: "the server wants TLS: use tls=require or tls=verify",
    4151: "the account of this user is locked",
}
"""What waiting does not help against, and what does."""


def code_of(error: BaseException) -> int:
    """Return the number of an error, 0 where it has none."""
    code = error.args[0] if isinstance(error, pymysql.err.Error) and error.args else 0
    return code if isinstance(code, int) else 0


def text_of(error: BaseException) -> str:
    """Return what an error says."""
    if isinstance(error, pymysql.err.Error) and len(error.args) > 1:
        return f"{error.args[1]} ({error.args[0]})"
    return str(error) or type(error).__name__


def is_answer(error: BaseException) -> bool:
    """Tell whether the server itself said so, which then has not done what it was asked."""
    code = code_of(error)
    return code > 0 and not 2000 <= code < 3000


def will_stay(error: BaseException) -> bool:
    """Tell whether the server has said so and will say so again."""
    return is_answer(error) and code_of(error) not in _PASSING and judge(error) in (Fault.CONTENT, Fault.AWAY)


def _origin(error: BaseException) -> BaseException | None:
    return getattr(error, "original_exception", None) or error.__context__


def judge(error: BaseException) -> Fault:
    """Tell what an error of a statement or of a connection means."""
    code = code_of(error)
    if code in _CONFLICT:
        return Fault.CONFLICT
    if code in _CONTENT or isinstance(error, pymysql.err.IntegrityError | pymysql.err.DataError):
        return Fault.CONTENT
    if isinstance(_origin(error), TimeoutError):
        return Fault.AWAY  # It hangs: to ask again would be to wait again.
    if code in _LOST or (isinstance(error, pymysql.err.InterfaceError) and not code):
        return Fault.LOST
    if isinstance(error, pymysql.err.InternalError) and not code:
        return Fault.LOST  # The conversation is out of step.
    if isinstance(error, OSError):
        return Fault.LOST
    return Fault.AWAY


def refusal(error: BaseException, where: str, doubt: str = "") -> DschedError:
    """Return what to say when a store cannot be opened: `ConfigError` where waiting cannot help.

    `doubt` is what else a refused login may be for: of a user without the TLS that it must use a server says no more.
    """
    origin = _origin(error)
    advice = _ADVICE.get(code_of(error))
    if code_of(error) == _LOGIN_REFUSED and doubt:
        advice = f"{advice}, or {doubt}"
    if isinstance(origin, ssl.SSLCertVerificationError):
        advice = "the server's certificate does not pass: give its issuer as ca=PATH, or use the name it is made for"
    elif isinstance(origin, socket.gaierror) and origin.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", 0)):
        advice = "there is no host of that name"
    elif judge(error) is Fault.CONTENT:
        advice = "the schema cannot be made"
    if advice is not None:
        return ConfigError(f"store: {where}: {advice} [{text_of(error)}]")
    return StoreUnavailable(f"MySQL: {where}: {text_of(error)}")
