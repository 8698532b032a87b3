"""Recording unchanged scripts that train with TensorFlow or Keras (`paceline record -- python train.py`).

| module | contents |
| --- | --- |
| watch | starts in the script's process, reports what was recorded |
| hooks | the functions of TensorFlow and Keras that are wrapped |
| assignments | updates of scripts without an optimizer |
| marks | timestamps in eager execution and in graphs |
| recorder | counts steps, keeps what was marked |
| table | names and sizes of variables, layers and optimizers |
| steps | marks to steps |
| trace | steps to a trace |
"""
