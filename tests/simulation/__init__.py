"""The whole gatekeeper under seeded faults: one seed draws a configuration and what goes wrong, a checker of its own judges.

    make sim SEEDS=200      seeds 0 to 199
    make sim SEED=123       one of them, told step by step

The gatekeeper is the real one (gate.service and all behind it). In its place are only: the broker (`broker`), time and chance
(`clock`: virtual seconds, one source of chance), and threads (`process`: their work runs on the loop, so that a seed is a run).
"""
