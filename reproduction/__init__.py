"""The paper, reproduced: its tables, figures and claims, run again with feddrop.

``framework`` stores runs, judges claims and writes the page; ``experiments`` has one module per table or figure.
"""
