"""The server; its settings are in pyproject.toml."""

from feddrop.flower import server_app

app = server_app()
