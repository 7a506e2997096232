"""The server: what it trains stands in pyproject.toml."""

from feddrop.flower import server_app

app = server_app()
