"""Pack a folder of files into published shards, with their spec and dataset index.

`folder_listing` finds the files, and reads the tables that state more about them; `pack_plan` makes
samples and classes of both. Up to here nothing is written and no picture is read. `packed_folder`
cuts the samples into shards, and writes them. Bytes are copied as they are.
"""
