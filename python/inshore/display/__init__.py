"""The display of results, stores, graphs and nodes in notebooks, and of running jobs.

- `html`: the HTML of tables and facts, without scripts and style sheets.
- `progress`: the progress bar of a job, in a notebook and in a terminal.

These modules do not depend on results, stores and graphs, whose ``_repr_html_`` methods call them.
"""
