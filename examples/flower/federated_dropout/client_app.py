"""A device: its part of the embedded digits, by the number in its node configuration."""

from feddrop.flower import client_app

app = client_app()
