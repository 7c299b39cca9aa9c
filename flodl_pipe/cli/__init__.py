"""The program ``flodl-pipe``: exit statuses, error printing, and the way from ``job=KIND`` to a job's module."""
