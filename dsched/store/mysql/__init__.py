"""The store in a MySQL or MariaDB database. Nothing else imports PyMySQL."""

from dsched.store.mysql.address import PASSWORD_VARIABLE, parse_url
from dsched.store.mysql.connection import MySqlSettings, TlsMode
from dsched.store.mysql.store import MySqlStore

__all__ = ["PASSWORD_VARIABLE", "MySqlSettings", "MySqlStore", "TlsMode", "parse_url"]
