"""``python -m feddrop``."""

from feddrop.terminal import main

main()
