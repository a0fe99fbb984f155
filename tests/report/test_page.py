"""The HTML report: it stands alone, it is small, and a real browser draws every figure."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from planner.api import estimate
from planner.appraisal import plan_of
from planner.layout import Layout
from planner.report.diagrams import coordinates, layers_of_rank
from planner.report.gather import gather
from planner.report.page import Report, report_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
HEADINGS = ("Who holds what", "Memory", "The step in time", "Parts of the step",
            "Time against memory", "Scaling", "Assumptions", "Sources")  # fmt: skip
LARGEST_BYTES = 5_000_000
PROBE = """<script>
document.title = JSON.stringify([...document.querySelectorAll("figure svg")].map(picture => {
  const box = picture.getBoundingClientRect();
  const marks = picture.querySelectorAll("rect, path, circle").length;
  return [picture.getAttribute("aria-label"), box.width, box.height, marks];
}));
</script>"""


@pytest.fixture(scope="module")
def page():
    one = estimate("llama-7b", gpus=16, layout="tp=2,pp=4,sp", global_batch=64)
    return report_page(gather(plan_of(one, inputs={"command": "estimate <b>&"})))


class _Tags(HTMLParser):
    """Tags in order, and a complaint if one is closed that is not open."""

    void = ("meta", "link", "br", "img")

    def __init__(self):
        super().__init__()
        self.open, self.links, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[k] for k in ("src", "href", "xlink:href") if k in values]
        self.ids += [values["id"]] if "id" in values else []
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def test_page_is_whole_and_stands_alone(page):
    parser = _Tags()
    parser.feed(page)
    assert parser.open == []
    outside = [link for link in parser.links if not link.startswith(("#", "data:"))]
    assert outside == []
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert "<script" not in page
    assert len(parser.ids) == len(set(parser.ids))


def test_page_has_every_section_and_escapes_words(page):
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == list(HEADINGS)
    assert "estimate &lt;b&gt;&amp;" in page


def test_page_of_16384_gpus_is_small():
    one = estimate("llama-3-405b", gpus=16384, cluster="h100-8x400g", global_batch=2048,
                   layout="tp=8,pp=16,sp,zero=1,recompute=full", sequence_length=8192)  # fmt: skip
    text = report_page(Report(plan=plan_of(one), appraisal=one))
    assert len(text.encode()) < LARGEST_BYTES
    assert "The first 16 of 2048 nodes" in text


def test_a_browser_draws_every_figure(page, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", PROBE + "</body>"))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,900", "--dump-dom",
         path.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title is not None
    drawn = json.loads(title[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert [name for name, *_ in drawn] == [
        "16 ranks on 2 nodes", "memory", "pipeline timeline", "parts",
        "GiB against seconds a step", "scaling",
    ]  # fmt: skip
    for name, width, height, marks in drawn:
        assert width > 300, name
        assert height > 20, name
        assert marks > 2, name


def test_ranks_lie_where_the_axis_order_puts_them():
    layout = Layout(dp=2, tp=2, pp=2, axis_order=("tp", "cp", "pp", "dp"))
    assert coordinates(layout, 2) == {"tp": 0, "cp": 0, "pp": 1, "dp": 0}


def test_v_shaped_schedules_hold_both_ends_on_the_first_rank():
    layout = Layout(pp=2, vpp=2, schedule="zbv", stage_layers=(1, 2, 3, 4))
    assert layers_of_rank(layout, 10, 0) == "0, 6-9"
    assert layers_of_rank(layout, 10, 1) == "1-2, 3-5"
