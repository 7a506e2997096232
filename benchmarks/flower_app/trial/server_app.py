"""The server of the trial: feddrop's own."""

from feddrop.flower import server_app

app = server_app()
