"""The server: feddrop's default one."""

from feddrop.flower import server_app

app = server_app()
