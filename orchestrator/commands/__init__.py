"""The commands that people type, one topic a file: parse, call one workflow, render. cli.py gathers them."""
