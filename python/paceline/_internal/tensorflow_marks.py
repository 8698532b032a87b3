"""Attributes by which graphs of TensorFlow tell which tensors a node of ours reduces.

A node is a call of Python, whose operation says nothing (`PyFunc`). The planner reads them from a GraphDef, in which
they are saved: TensorFlow keeps attributes that begin with an underscore on any operation.
"""

ALL_REDUCES = "_paceline_all_reduces"
"""Names of the tensors that the node submits, as ranks know them."""
DTYPES = "_paceline_dtypes"
"""Their element types."""
BYTES = "_paceline_bytes"
"""Their sizes; UNKNOWN where a shape is not known when the graph is made."""
AWAITS = "_paceline_awaits"
"""Names of the tensors whose sums the node returns."""
UNKNOWN = -1
