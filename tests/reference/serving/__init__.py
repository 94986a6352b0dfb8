"""A slow, transparent reference of the serving estimate.

It follows the equations of `docs/` and of the doc comments, and shares no code with the engine: it
walks every layer of the model and every matrix of a layer, and its replay goes token by token, one
step of an engine at a time. Input is the canonical JSON that the core reads.
"""
