"""The Chinese README shows the commands and code of the English one, and no others."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SHOWN = re.compile(r"```(?:console|python)\n(.*?)```", re.DOTALL)


def shown(name):
    return SHOWN.findall((ROOT / name).read_text(encoding="utf-8"))


def test_both_readmes_show_the_same_commands_and_code():
    assert shown("README.zh.md") == shown("README.md") != []


def test_files_that_the_readmes_link_to_exist():
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (ROOT / target).is_file(), f"{name}: {target}"


def test_the_citation_names_the_version_of_the_package():
    import planner

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == planner.__version__
