"""Diagnosis of recorded runs: `paceline doctor` reads a timeline and reports where the time of a step goes.

| module | contents |
| --- | --- |
| events, reading, timeline_model | a file, its events, and a model of what ranks did |
| transfers | the same transfer on all ranks, and when the last rank was ready for it |
| steps, intervals | the steps, and the script's activities in them |
| waits | a wait, divided into straggler, negotiation and transfer |
| step_breakdown | a step of a rank, divided; means |
| analysis | all steps of all ranks |
| causes, sending | causes of lost time, and remedies |
| diagnosis, report | the result for people and as JSON |
| environment, environment_table | `--env`: what is installed, and the limits of this machine |
| cuda_aware_mpi | whether the MPI library takes the memory of CUDA devices |
"""

from paceline._internal.lazy import public_names
from paceline.doctor.diagnosis import Diagnosis
from paceline.doctor.report import Report, diagnose

__all__ = ["Diagnosis", "Report", "diagnose"]

__dir__ = public_names(__name__)
