"""Reports as self-contained HTML pages: of a run, of an explanation, of a study, a comparison or a tuning.

`document` holds the content as plain values, `charts` and `svg` draw it, `html` renders and writes the page. The other
modules build the content.
"""
