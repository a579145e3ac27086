"""The documentation: every link leads somewhere, and the site asks no other machine for anything."""

import json
import re
import warnings
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import dygmamba as dm
from browser import find_browser
from dygmamba.models import MODELS

ROOT = Path(__file__).parents[1]
PAGES = [
    path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "results"
]  # a template is there
BUILT = {ROOT / "docs" / "research" / "results.md"}  # site/hooks.py writes it
WRITTEN = [*sorted(ROOT.glob("*.md")), *PAGES, *sorted((ROOT / "examples").glob("*.ipynb"))]
FENCED = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "form": "action"}
LINKING = {**LOADING, "a": "href"}


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_relative_link_leads_to_a_file(path):
    """For all links of the README, docs and notebooks without a scheme: the file is there, or the site has it."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        address = urlsplit(target)
        if not address.scheme and address.path:
            file = (path.parent / unquote(address.path)).resolve()
            assert file.exists() or file in BUILT, f"{path.name} links to {target}"


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.places: set[str] = set()
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every element with an address or a name."""
        values = dict(attrs)
        self.places |= {value for key in ("id", "name") if (value := values.get(key))}
        if tag in LINKING and (address := values.get(LINKING[tag])):
            self.links.append((tag, address))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly: a page out of the menu or a link into nothing would end it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of mkdocs and its plugins; what they find in pages is logged and ends it
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    return out


@pytest.fixture(scope="module")
def pages(site):
    """Every page of the site, the API reference too."""
    return {path: Page(path) for path in site.rglob("*.html")}


def test_nothing_is_loaded_from_another_machine(site, pages):
    """For all pages and styles: no script, style, font, picture or frame has an address with a host."""
    for path, page in pages.items():
        loaded = [address for tag, address in page.links if tag in LOADING]
        assert not [address for address in loaded if urlsplit(address).netloc], path
    for path in [*site.rglob("*.css"), *pages]:
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", path.read_text()), path


def test_every_link_of_the_site_leads_to_a_place(site, pages):
    """For all links within the site, with and without a place in the page; the reference's as well."""
    for path, page in pages.items():
        for _, target in page.links:
            address = urlsplit(target)
            if address.scheme or address.netloc or path.name == "404.html":
                continue
            other = (path.parent / unquote(address.path)).resolve() if address.path else path
            assert other.exists(), f"{path.relative_to(site)} links to {target}"
            if address.fragment and other in pages:
                assert unquote(address.fragment) in pages[other].places, f"{path.relative_to(site)}: {target}"


def test_every_page_is_in_the_menu(site, pages):
    """For all pages that are written: the site's menu leads there, and so does the list that GitHub shows."""
    listed = (ROOT / "docs" / "index.md").read_text()
    menu = {address for tag, address in pages[site / "index.html"].links if tag == "a"}
    for path in PAGES:
        name = path.relative_to(ROOT / "docs")
        assert str(name.with_suffix(".html")) in menu
        assert f"]({name})" in listed or path.name == "index.md"


def test_the_reference_has_every_public_name(site, pages):
    """For all functions and classes of the door: a line in the table, and a place of its own in its module's page."""
    table = pages[site / "reference" / "api.html"].text
    for name in set(dir(dm)) - {"__version__"}:
        assert f"dm.{name}</code>" in table
    written = pages[site / "api" / "dygmamba" / "api" / "run.html"].places
    assert {"Run.score", "Run.rank", "Run.observe", "open"} <= written


def test_commands_and_settings_are_complete(site, pages):
    """For all commands and models: the site has a section with their options and settings."""
    commands, settings = (pages[site / "reference" / f"{name}.html"] for name in ("commands", "settings"))
    assert {"dygmamba-train", "dygmamba-data-import", "dygmamba-live-check"} <= commands.places
    assert "<code>--budget</code>" in commands.text
    assert set(MODELS) <= settings.places
    assert "<code>walk_decays</code>" in settings.text


def test_the_search_works_without_a_server(site, tmp_path):
    """A page that is opened from the disk finds what is asked for, without a complaint."""
    text, said = find_browser(tmp_path / "profile").dom(site / "index.html", query="?q=forgetting")
    assert re.search(r"\d+ matching documents", text)
    assert not said


MEASURE = """<body><pre id=found>not measured</pre><script>
const width = 400, found = [], read = address => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 900px`;
  frame.onload = () => setTimeout(() => done(frame), 200);
  frame.src = address;
  document.body.append(frame);
});
const isOutside = (node, view) => {
  if (!node.offsetWidth || node.getBoundingClientRect().right <= width + 1) return false;
  for (let box = node.parentElement; box; box = box.parentElement) {
    const fits = box.getBoundingClientRect().right <= width + 1;
    if (fits && /auto|scroll/.test(view.getComputedStyle(box).overflowX)) return false;
  }
  return true;
};
(async () => {
  for (const address of PAGES) {
    const frame = await read(address), page = frame.contentDocument;
    if (page.documentElement.scrollWidth > width) found.push(`${address} scrolls sideways`);
    for (const node of page.querySelectorAll("article *, main.pdoc *"))
      if (isOutside(node, frame.contentWindow)) found.push(`${address}: ${node.textContent.slice(0, 40)}`);
    frame.remove();
  }
  document.getElementById("found").textContent = found.length ? found.join("; ") : "all pages fit";
})();
</script>"""


def test_pages_fit_a_phone(site, tmp_path):
    """For pages of each kind at 400 pixels: what is wider, such as a table, scrolls inside a box that fits."""
    names = ("index", "how-to/train", "reference/api", "research/results", "api/dygmamba/api/run")
    pages = [(site / f"{name}.html").as_uri() for name in names]
    measure = tmp_path / "measure.html"
    measure.write_text(MEASURE.replace("PAGES", json.dumps(pages)), "utf-8")
    text, _ = find_browser(tmp_path / "profile").dom(measure, "--allow-file-access-from-files")
    assert re.findall(r'<pre id="found">(.*?)</pre>', text, re.DOTALL) == ["all pages fit"]
