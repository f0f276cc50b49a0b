"""The carrier: mail between offices over git refs. It can push nothing but mail (docs/carrier.md)."""
