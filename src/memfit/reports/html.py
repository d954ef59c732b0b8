"""One self-contained HTML file: a prediction, and beside it what was measured.

Records go into the templates of this package as they are; the numbers a chart needs go into a JSON
block that the page's script reads.  Plotly comes from its Python package and stands in the file,
so the page opens without a network and still opens in ten years.  Names of modules, ops and jobs
are hostile until escaped: Jinja escapes the text, :func:`_json_block` the JSON, and a content
security policy lets the browser run our two scripts and nothing else, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from memfit.records.prediction import Prediction
from memfit.records.runlog import RunLog
from memfit.records.timeline import Timeline
from memfit.reports import charts, wording
from memfit.reports.segments import segment_map
from memfit.units import format_duration, format_size

_SCRIPTS = ("format.js", "theme.js", "plot.js", "memory.js", "lines.js")
"""In the order they run; each hangs its functions on the one object ``memfit``."""


def prediction_page(
    prediction: Prediction, *, measured: Timeline | None = None, runlog: RunLog | None = None
) -> str:
    """The page of a prediction.

    Args:
        prediction: what is shown.
        measured: a recording of the same run, drawn over the prediction.
        runlog: the training run that followed: its losses and measured memory.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    replay = prediction.replay
    drawn: dict[str, Any] = {"memory": charts.memory_chart(prediction)}
    if measured is not None:
        drawn["comparison"] = charts.comparison_chart(prediction, measured)
    if runlog is not None:
        drawn["training"] = charts.training_chart(runlog)
    plotly, script = _plotly(), "\n".join(map(_template, _SCRIPTS))
    return (
        _environment()
        .get_template("prediction.html")
        .render(
            prediction=prediction,
            measured=measured,
            runlog=runlog,
            drawn=drawn,
            segments=segment_map(replay.segments, prediction.timeline) if replay.segments else None,
            prediction_json=_json_block(prediction.as_dict()),
            charts_json=_json_block(drawn),
            styles=Markup(_template("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            script_hashes=[_hash_source(plotly), _hash_source(script)],
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["wording"] = wording
    environment.filters |= {
        "size": format_size,
        "duration": format_duration,
        "count": "{:,}".format,
        "label": wording.LABELS.__getitem__,
        "share": wording.share,
    }
    return environment


@cache
def _template(name: str) -> str:
    file = resources.files("memfit.reports") / "templates" / name
    return file.read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _plotly() -> str:
    file = resources.files("plotly") / "package_data" / "plotly.min.js"
    return file.read_text(encoding="utf-8").replace("\r\n", "\n")


def _json_block(data: dict[str, Any]) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _hash_source(script: str) -> str:
    """How a content security policy names an inline script it allows."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
