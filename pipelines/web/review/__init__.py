"""The review server: local web pages on which people check answers beside their evidence.

`index` is a copy of the tables' metadata in SQLite, from which pages of a list come at once; `intake` keeps it up to
date; `journal` has each verdict on disk before a page says so, and brings it to the `feedback` table.
`service` is what people do there, `app` puts the pages together, and `pipelines.web.access` decides who sees them.
"""
