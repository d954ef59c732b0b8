"""The page about the architecture names every package, on the floors that the linter holds."""

import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def floors_of_the_contract() -> list[list[str]]:
    """From the top; the packages of a floor in the order of the alphabet."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"
    )
    return [sorted(layer.split(" | ")) for layer in contract["layers"]]


def floors_of_the_picture() -> list[list[str]]:
    picture = ET.parse(ROOT / "docs" / "architecture.svg").getroot()
    floors = picture.findall(f"{SVG}g[@class='floor']")
    heights = [float(floor[0].attrib["y"]) for floor in floors]
    assert heights == sorted(heights)
    return [
        sorted(text.text or "" for text in floor.findall(f"{SVG}text[@class='package']"))
        for floor in floors
    ]


def test_the_floors_of_the_picture_are_those_of_the_contract() -> None:
    assert floors_of_the_picture() == floors_of_the_contract()


def test_every_package_and_module_at_the_top_has_its_paragraph_from_the_top_floor_down() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\w+)\n\n\*.*\?\*", page, re.MULTILINE)
    source = ROOT / "src" / "memfit"
    there = {path.parent.name for path in source.glob("*/__init__.py")}
    there |= {path.stem for path in source.glob("*.py") if not path.stem.startswith("__")}

    assert sorted(headings) == sorted(there)
    floor = {name: level for level, names in enumerate(floors_of_the_contract()) for name in names}
    assert [floor[name] for name in headings] == sorted(floor[name] for name in headings)
