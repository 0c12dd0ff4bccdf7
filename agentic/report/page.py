"""Writes `report.html`, `report.json` and `reproduce.yaml` into a run's folder.

The page holds its pictures and styles itself and loads nothing, which its own content security policy enforces. The
files are replaced as a whole, so that a reader never sees half of one, and writing again is always safe.
"""

import json
import re
from base64 import b64encode
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from agentic.files import write_text
from agentic.report.loading import load
from agentic.report.pictures import PICTURES
from agentic.report.records import OUTCOMES, Run
from agentic.report.summary import Rate, Summary, summarize, verdict

_SHOWN_EXAMPLES = 6
_REPRODUCE = "reproduce.yaml"
_VERSIONED = ("agentic-rl", "verl", "vllm", "torch", "transformers", "ray", "harbor", "hera")
_SECRET = re.compile(r"(password|passwd|secret|token|credential|api_?key|access_?key|private_?key)$", re.IGNORECASE)


class _Picture(NamedTuple):
    base64: str
    alternative: str


def write(run_dir: Path) -> Path:
    """Write the report of a run, and return the page's path.

    Raises:
        ReportError: no such folder, or a file in it is malformed.
    """
    run = load(run_dir)
    summary = summarize(run)
    page = run_dir / "report.html"
    if run.settings is not None:
        write_text(run_dir / _REPRODUCE, _settings_text(run.settings))
    write_text(run_dir / "report.json", summary.model_dump_json(indent=1) + "\n")
    write_text(page, render(run, summary))
    return page


def render(run: Run, summary: Summary) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("agentic.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"duration": duration, "rate": _short_rate, "verdict": verdict}
    return environment.get_template("page.html.j2").render(
        summary=summary,
        pictures=_draw(summary),
        outcomes=OUTCOMES,
        examples=run.examples[:_SHOWN_EXAMPLES],
        settings=_settings_text(run.settings) if run.settings is not None else "",
        profile=(run.settings or {}).get("profile", ""),
        command=f"python3 workflows/submit.py local --profile workspace/runs/{run.run_id}/{_REPRODUCE}",
        versions=_versions(),
    )


def duration(seconds: float) -> str:
    """75.2 -> '1 min 15 s'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def without_secrets(settings: Any) -> Any:
    """Settings hold names of secrets, never values; should one slip in all the same, it does not get into a page."""
    if isinstance(settings, dict):
        return {
            key: "(withheld)" if _SECRET.search(key) and isinstance(value, str) else without_secrets(value)
            for key, value in settings.items()
        }
    if isinstance(settings, list):
        return [without_secrets(item) for item in settings]
    return settings


def _draw(summary: Summary) -> dict[str, _Picture]:
    drawn = {name: (draw(summary), alternative) for name, (draw, alternative) in PICTURES.items()}
    return {
        name: _Picture(b64encode(image).decode(), alternative) for name, (image, alternative) in drawn.items() if image
    }


def _short_rate(side: Rate | None) -> str:
    return "-" if side is None or side.rate is None else f"{side.rate:.2f}"


def _settings_text(settings: dict[str, Any]) -> str:
    """A profile that names every setting; JSON is YAML too. The name of the profile it came from is no setting."""
    return (
        json.dumps(without_secrets({key: value for key, value in settings.items() if key != "profile"}), indent=1)
        + "\n"
    )


def _versions() -> dict[str, str]:
    """Of the machine that writes the report, which in the workflow is the one that trained."""
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
