"""Start paceline's engine in a rank that `systems.launches` made, without torch."""

from __future__ import annotations

import os

from paceline._core import Communicator, Engine
from paceline.job.rank_environment import rank_environment
from paceline.job.settings import Settings


def start() -> tuple[Engine, Communicator]:
    if os.environ.get("PACELINE_TRANSPORT") == "mpi":
        place = rank_environment()
        engine = Engine.start(place.rank, place.size, Settings.from_environment().to_json())
        return engine, engine.world()
    rendezvous = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    settings = Settings.from_environment(rendezvous=rendezvous).to_json()
    engine = Engine.start(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), settings)
    return engine, engine.world()
