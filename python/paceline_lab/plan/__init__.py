"""Bucket plans: which all-reduces of a graph are fused, and in which order they start.

The method and the file format are described in docs/reference/coordinator-plan.md. TensorFlow is imported only for its
own graphs.
"""

from paceline._core import Graph
from paceline._internal.lazy import public_names

from paceline_lab.plan.options import TensorflowOptions
from paceline_lab.plan.result import Bucket, Plan, Tensor, plan_graph
from paceline_lab.plan.sources import read_graph
from paceline_lab.plan.tensorflow_graph import plan_tensorflow

__all__ = ["Bucket", "Graph", "Plan", "Tensor", "TensorflowOptions", "plan_graph", "plan_tensorflow", "read_graph"]

__dir__ = public_names(__name__)
