"""What dominates a recorded run: `paceline doctor` reads a timeline, and says what a step spends its time on.

| module | holds |
| --- | --- |
| events, reading, recorded | a file, its events, and what ranks did when |
| transfers | the same transfer on all ranks, and when the last one was ready for it |
| steps, intervals | where steps begin and end, and what the script does in them |
| waits | a wait, divided: straggler, negotiation, transfer |
| account, parts | a step of a rank, divided; means |
| analysis | all steps of all ranks |
| causes, latency, busiest | what time is lost to, a cause a module |
| diagnosis, report | how it is said |
| environment, environment_table | `--env`: what is installed and what this machine is like |
"""

from paceline.doctor.diagnosis import Diagnosis
from paceline.doctor.report import Report, diagnose

__all__ = ["Diagnosis", "Report", "diagnose"]
