"""orch: how good is the live training run right now?"""

__version__ = "0.1.0"
