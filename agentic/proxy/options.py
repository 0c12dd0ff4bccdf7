"""The settings as options of the command line, and where the command logs.

Each field of ProxySettings is an option of its name, and the field's text is its help, so a setting that is added is
reachable at once and is described in one place. Values are checked by the settings model alone.
"""

import argparse
import logging

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from .errors import ProxyError
from .settings import ProxySettings

SHORT_NAMES = {"journal_directory": "journal", "journal_fsync": "fsync"}
"""Where an option is not called like its field."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_settings(parser: argparse.ArgumentParser) -> None:
    """An option for each setting."""
    group = parser.add_argument_group("settings")
    for name, field in ProxySettings.model_fields.items():
        if field.annotation is bool:
            group.add_argument(_option(name), action=argparse.BooleanOptionalAction, dest=name, help=_help(field))
        else:
            group.add_argument(_option(name), dest=name, metavar="VALUE", help=_help(field))


def read_settings(options: argparse.Namespace) -> ProxySettings:
    """The settings that were given; ProxyError names the first option at fault."""
    given = {name: getattr(options, name) for name in ProxySettings.model_fields}
    try:
        return ProxySettings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ProxyError(f"{_option(str(first['loc'][0]))} {first['input']}: {first['msg']}") from error


def log_to_stderr(level: int) -> None:
    """Log what the proxy says from `level` on, and other packages' warnings, with time and logger."""
    logging.basicConfig(format=LOG_FORMAT)
    logging.getLogger(__package__).setLevel(level)


def log_level() -> int:
    """From where on the proxy's lines are logged in this process."""
    return logging.getLogger(__package__).getEffectiveLevel()


def _option(name: str) -> str:
    return "--" + SHORT_NAMES.get(name, name).replace("_", "-")


def _help(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split()).replace("%", "%%").replace("`", "")
    return f"{text} (default: {field.default})"
