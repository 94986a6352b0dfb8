"""A slow, transparent reference of the training estimate: one plain loop per sum.

It follows the equations in `docs/` and shares no code with the engine: no table, no classes
of stages, no caches. It walks every stage, every layer of a stage and every GEMM of a layer. Input
is the canonical JSON that the core reads; the answer is one dict with every column of the row.
"""
