"""A device; the number in its node configuration selects its partition of the digits."""

from feddrop.flower import client_app

app = client_app()
