"""``show`` and ``list``."""

import json

import pytest

from planner.catalogue import KINDS


def test_show_prints_the_model_as_it_was_read(planner):
    found = planner("show", "llama-7b")
    assert found.code == 0
    assert "6,738,415,616" in found.out


def test_show_as_json_has_both_counts(planner):
    answer = json.loads(planner("show", "mixtral-8x7b", "--json").out)
    assert answer["total_parameters"] == 46_702_792_704
    assert answer["active_parameters"] == 12_879_925_248


@pytest.mark.parametrize("kind", KINDS)
def test_list_names_what_is_known(planner, kind):
    found = planner("list", kind)
    assert found.code == 0
    assert json.loads(planner("list", kind, "--json").out)[kind] == found.out.split()


def test_an_unknown_kind_lists_the_known(planner):
    found = planner("list", "planets")
    assert found.code == 2
    assert "models" in found.err
