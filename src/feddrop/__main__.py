"""``python -m feddrop``."""

from feddrop.cli import main

main()
