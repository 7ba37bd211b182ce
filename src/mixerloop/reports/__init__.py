"""Reports of studies and runs: HTML pages, Markdown and figures."""
