"""Configuration: YAML and overrides in, frozen Pydantic models out.

Hydra finds the files and merges them, OmegaConf resolves interpolations, Pydantic checks every value. The models of
the sections are in ``source``, ``sampling``, ``loader``, ``reports``, ``job`` and ``root``; ``compose`` is the door.
Nothing outside this package sees Hydra or OmegaConf.
"""
