"""The one exception for what a user can mend: a wrong file, option or configuration."""

from __future__ import annotations


class Refused(Exception):
    """Something handed in cannot be used. The message is the whole sentence to print; the program exits with 2."""
