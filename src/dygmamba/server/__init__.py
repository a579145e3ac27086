"""HTTP server for a live run: events in, scores out, with metrics and a page. Needs the extra `serve`."""
