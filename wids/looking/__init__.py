"""A dataset → text, HTML and a page for a person.

The modules here know a dataset only by the protocol `wids.looking.preview.Browsable`, which keeps
this package below the dataset. They decide what is worth showing and how it looks; they never
decide how bytes are fetched.
"""
