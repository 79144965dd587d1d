"""hosts.yaml, jobs/*.yaml and the user's own config.yaml -> nouns. A wrong file is a ConfigError with its line."""

from orchestrator.config.choose import choose_eval_host, choose_job, choose_run, eval_hosts, only_job
from orchestrator.config.load import find_inventory, job_names, load_inventory, load_job
from orchestrator.config.user import UserConfig, load_user_config, resolve_env

__all__ = [
    "UserConfig",
    "choose_eval_host",
    "choose_job",
    "choose_run",
    "eval_hosts",
    "find_inventory",
    "job_names",
    "load_inventory",
    "load_job",
    "load_user_config",
    "only_job",
    "resolve_env",
]
