"""The web app: look inside trained models, compare runs, and play with the estimators. It needs ``argrad[app]``.

One file is one tab: a function that puts its components into the page, given the :class:`~argrad.app.library.Library`
of runs. What a visitor does is kept in the components and in ``gr.State``, never in a module, so several people at once
do not mix. The server is in :mod:`argrad.app.server`.
"""
