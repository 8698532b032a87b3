"""Ranks whose clocks differ and drift, like those of several machines, play a trace."""

import paceline
from paceline._internal.clock import Clock
from paceline_lab.replay.align import Common, offset
from paceline_lab.replay.play import ReplaySpec, gather, play
from paceline_lab.replay.result import measured
from paceline_lab.replay.traces import shrunk

from job_workers.values import tell

GAINS = 2e-4


class Another(Clock):
    """Days ahead, and faster by 200 ppm per rank."""

    def __init__(self, rank):
        super().__init__()
        self.name, self.rank = f"clock {rank}", rank
        self.start = super().now()

    def now(self):
        now = super().now()
        return now + self.rank * (86_400_000_000_000 + round((now - self.start) * GAINS))


def main():
    with paceline.job.join() as job:
        clock = Another(job.rank)
        names = [f"clock {rank}" for rank in range(job.size)]
        before = offset(job, clock, names)
        trace = shrunk(paceline.load_trace("netop-inception-v3"), 256)
        played = gather(job, play(job, ReplaySpec(trace, 4, 2), clock))
        true, own = Clock().now(), clock.now()
        common = Common(before, offset(job, clock, names))
        tell(
            rank=job.rank,
            wrong_s=abs(common(own) - true) * 1e-9,
            error_s=common.error_s,
            seconds=[one.seconds for one in measured(played)] if played else [],
            errors=[one.clock_error_s for one in played],
            names=sorted({one.clock for one in played}),
        )


if __name__ == "__main__":
    main()
