"""Methods at unequal rates, compared at equal bytes: ``python -m reproduction unequal``."""
