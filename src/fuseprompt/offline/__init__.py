"""The offline models: small stand-ins made on this machine from files inside ordinary packages.

`manifest` says what there is and whether it is whole, `prepare` downloads archives and orders the
work, `convert` makes each model's folder, `image_tower` embeds pictures. Nothing is exported.
"""
