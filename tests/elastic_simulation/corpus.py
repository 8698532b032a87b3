"""Scenarios that violated an invariant once."""

from elastic_simulation.scenario import Fault, Scenario

SCENARIOS = [
    # Answers of an earlier world, on a connection that was made again, counted for the next one.
    Scenario(
        seed=1098,
        hosts=(3,),
        least=2,
        most=3,
        steps=1,
        start_s=4.0,
        after_s=100.0,
        late=((1, 10.0),),
        faults=(Fault(28, "stop", 3, 2.0), Fault(72, "cut", 1, 2.0), Fault(98, "kill", 3, 2.0)),
    ),
    # All hosts were lost, and the job had succeeded.
    Scenario(
        seed=910,
        hosts=(2,),
        least=1,
        most=2,
        calm=True,
        steps=1,
        every=2,
        step_s=0.02,
        after_s=100.0,
        late=((1, 10.0),),
        discovery=True,
        faults=(Fault(5, "offer", 2, 8.0), Fault(41, "lose host", 2, 8.0)),
    ),
    # The launcher looked at connections again and again while it waited for ranks to end.
    Scenario(
        seed=18,
        hosts=(3,),
        least=2,
        most=3,
        steps=8,
        step_s=1.0,
        late=((5, 3.0), (6, 10.0)),
        faults=(Fault(38, "leave", 1, 0.3), Fault(56, "partition", 7, 50.0)),
    ),
    # A host that was lost after the job had succeeded failed it.
    Scenario(
        seed=139,
        hosts=(2,),
        least=1,
        most=1,
        calm=True,
        steps=2,
        faults=(Fault(53, "lose host", 5, 0.01),),
    ),
    # A host that was lost before the discovery script named it was waited for, for ever.
    Scenario(
        seed=34401,
        hosts=(1, 1),
        least=1,
        most=2,
        calm=True,
        steps=1,
        step_s=1.0,
        start_s=0.1,
        after_s=0.0,
        discovery=True,
        faults=(Fault(4, "lose host", 4, 20.0),),
    ),
]
