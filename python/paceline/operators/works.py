"""The costs of a list of operators, with what torch.compile fuses, and the program of both queues that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.operators.fused import Fusion
from paceline.operators.kernels import Work, work_of
from paceline.operators.machine import Machine
from paceline.operators.operator import SYNCHRONIZE, Operator
from paceline.operators.queues import Program, dispatch_s


def works_of(operators: Sequence[Operator], machine: Machine, begin: int = 0) -> tuple[list[Work], set[int]]:
    """Return what operators cost, and the places of those that are fused.

    In a chain of fused ones, the last one has the costs of all.

    Args:
        operators: A list of whole steps or modules.
        machine: The GPU.
        begin: The place of the first one whose cost is wanted; those before are read for what they wrote.
    """
    works: list[Work] = []
    for place in range(begin, len(operators)):
        last = operators[place - 1] if place else None
        previous = last.outputs[0] if last is not None and last.outputs else None
        works.append(work_of(operators[place], machine, previous))
    fused: set[int] = set()
    if any(operator.compiled for operator in operators[begin:]):
        fusion = Fusion(operators)
        for chain in fusion.chains:
            if chain[0] >= begin:
                work = fusion.work_of(chain, machine)
                fused.update(chain)
                for place in chain:
                    works[place - begin] = replace(works[place - begin], bytes=0, kernels=())
                works[chain[-1] - begin] = work
    return works, fused


def host_of(operator: Operator, work: Work, machine: Machine, *, fused: bool) -> float:
    """Return the host's time to dispatch an operator; of a chain, the last one has that of all.

    Args:
        operator: What is dispatched.
        work: Its cost.
        machine: The GPU.
        fused: Whether it is in a chain.
    """
    return dispatch_s(operator, machine, fused=fused) if work.kernels or not fused else 0.0


def program_of(
    operators: Sequence[Operator], works: Sequence[Work], fused: Sequence[bool], machine: Machine
) -> Program:
    """Return what operators add to the times of host and device; on a CPU, its thread runs the kernels itself.

    The host launches a CUDA graph, of operators in a row, in the time of the first of them. Their kernels take as long
    as they do without it, with the gaps between them.
    """
    is_cpu, is_launched = machine.hardware.is_cpu, False
    program = Program()
    for operator, work, is_fused in zip(operators, works, fused, strict=True):
        is_launched = is_launched and operator.in_graph
        host_s = 0.0 if is_launched else host_of(operator, work, machine, fused=is_fused)
        is_launched = is_launched or (operator.in_graph and host_s > 0)
        if is_cpu:
            program = program.then(Program.of((), host_s + work.seconds))
        else:
            program = program.then(Program.of(work.kernels, host_s, waits=operator.name == SYNCHRONIZE))
    return program
