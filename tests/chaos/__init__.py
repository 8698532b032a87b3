"""What goes wrong in the real world, at random, for as long as one likes: `python -m chaos --minutes 5`, in tests/.

| module | what goes wrong |
| --- | --- |
| calls | ranks die, stop or leave in every call, on fast and on slow networks |
| training | ranks of elastic jobs die and stop |
| files | full disks, few file descriptors |
| packets | packets are corrupted, duplicated and reordered |
"""
