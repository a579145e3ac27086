"""Write the address of the repository into every file that names it.

`python release/set_repository.py https://github.com/OWNER/NAME` changes pyproject.toml, mkdocs.yml, CITATION.cff,
recipe/meta.yaml and SECURITY.md; run twice, it changes nothing more. The manual is expected at
https://OWNER.github.io/NAME/. On the package index, relative links of the README lead to the repository from then on.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README_HOOK = r"""
[tool.hatch.metadata.hooks.fancy-pypi-readme] # relative links do not work on the package index
content-type = "text/markdown"
fragments = [{{ path = "README.md" }}]
substitutions = [
  {{ pattern = '!\[(.*?)\]\((?!https?:)(.*?)\)', replacement = '![\1]({raw}/main/\2)' }},
  {{ pattern = '\]\((?!https?:|#)(.*?)\)', replacement = ']({home}/blob/main/\1)' }},
]
"""


def main(address: str, root: Path = ROOT) -> None:
    """Change the files below `root`."""
    found = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+?)/?", address)
    if found is None:
        sys.exit(f"{address!r} is not an address like https://github.com/OWNER/NAME")
    owner, name = found.groups()
    home, site = f"https://github.com/{owner}/{name}", f"https://{owner.lower()}.github.io/{name}/"
    urls = {
        "Documentation": site,
        "Repository": home,
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
    }
    set_lines(
        root / "pyproject.toml", "[project.urls]\n", {f"{key} = ": f'"{url}"' for key, url in urls.items()}
    )
    absolute_readme(root / "pyproject.toml", home, f"https://raw.githubusercontent.com/{owner}/{name}")
    set_lines(root / "mkdocs.yml", "docs_dir: docs\n", {"site_url: ": site, "repo_url: ": home})
    set_lines(
        root / "CITATION.cff", "license: MIT\n", {"repository-code: ": f'"{home}"', "url: ": f'"{site}"'}
    )
    set_lines(
        root / "recipe/meta.yaml", "about:\n", {"  home: ": site, "  dev_url: ": home, "  doc_url: ": site}
    )
    # conda builds without isolation, so the recipe names what the build needs
    set_lines(root / "recipe/meta.yaml", "    - hatchling >=1.26\n", {"    - hatch-fancy-pypi-readme": ""})
    security = root / "SECURITY.md"
    text = re.sub(r"(?<=--repo )[^\s`]+", f"{owner}/{name}", security.read_text("utf-8"))
    security.write_text(text, "utf-8")


def absolute_readme(path: Path, home: str, raw: str) -> None:
    """Let the build rewrite the links of the README; an earlier address is replaced."""
    text = re.sub(
        r"\n\[tool\.hatch\.metadata\.hooks\.fancy[^]]*\].*?\n\]\n",
        "",
        path.read_text("utf-8"),
        flags=re.DOTALL,
    )
    text = text.replace(
        'requires = ["hatchling>=1.26"]', 'requires = ["hatchling>=1.26", "hatch-fancy-pypi-readme"]'
    )
    text = text.replace('dynamic = ["version"]\n', 'dynamic = ["readme", "version"]\n').replace(
        'readme = "README.md"\n', ""
    )
    path.write_text(text + README_HOOK.format(home=home, raw=raw), "utf-8")


def set_lines(path: Path, after: str, lines: dict[str, str]) -> None:
    """Set lines by how they begin; new ones are added after the line `after`."""
    text = path.read_text("utf-8")
    for start, value in reversed(lines.items()):
        pattern = re.compile(rf"^{re.escape(start)}.*\n", re.MULTILINE)
        text = pattern.sub("", text, count=1)
        text = text.replace(after, f"{after}{start}{value}\n", 1)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
