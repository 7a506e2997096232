"""The server is feddrop's; it accepts tiny clients because ``flower.accept`` in pyproject.toml names them."""

from feddrop.flower import server_app

app = server_app()
