"""hosts.yaml, jobs/*.yaml and the user's own config.yaml -> nouns. Strict: a wrong file is a ConfigError with its line.

`orchestrator.config.schema` holds the JSON Schemas; it is not imported here, because only `orch schema` needs it.
"""

from orchestrator.config.choose import choose_eval_host, choose_job, choose_run
from orchestrator.config.load import find_inventory, job_names, load_inventory, load_job
from orchestrator.config.user import UserConfig, load_user_config, resolve_env
from orchestrator.config.words import fill_command

__all__ = [
    "UserConfig",
    "choose_eval_host",
    "choose_job",
    "choose_run",
    "fill_command",
    "find_inventory",
    "job_names",
    "load_inventory",
    "load_job",
    "load_user_config",
    "resolve_env",
]
