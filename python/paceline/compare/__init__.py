"""A forecast beside what was measured, and what would explain the difference.

| module | contents |
| --- | --- |
| files | the same from a file: a recording, a profile, a timeline, a log of nccl-tests |
| forecaster | forecasts of one request, and of the same with changes |
| hypotheses | causes as changes of a forecast, with the values that they may have |
| explain | how likely each cause is, and which value of it explains the measurement |
| report | the answer as text and as data |
"""
