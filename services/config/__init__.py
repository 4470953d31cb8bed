"""What each process can be told: names, defaults, limits. The only package that reads files or the environment for it.

A setting comes from the first of these that gives it: command-line flag, environment (``OCTAVO_<COMMAND>_<SETTING>``),
TOML file, the default written here. The command line derives its options from the data classes.
"""

from services.config.addresses import check_address, join_address, model_name_of
from services.config.executor import ExecutorConfig
from services.config.files import cache_folder, check_no_certificates, read_api_key, read_pem, read_text, read_toml
from services.config.gateway import GatewayConfig
from services.config.kvmanager import KVManagerConfig
from services.config.service import LogLevel, ServiceConfig
from services.config.settings import MAX_PORT, ConfigError, setting
from services.config.state import EMBEDDED_STATE, StateConfig

__all__ = [
    "EMBEDDED_STATE",
    "MAX_PORT",
    "ConfigError",
    "ExecutorConfig",
    "GatewayConfig",
    "KVManagerConfig",
    "LogLevel",
    "ServiceConfig",
    "StateConfig",
    "cache_folder",
    "check_address",
    "check_no_certificates",
    "join_address",
    "model_name_of",
    "read_api_key",
    "read_pem",
    "read_text",
    "read_toml",
    "setting",
]
