"""Horovod's `horovod.torch.elastic.sampler`: at run time the same module as `paceline.torch.hvd.elastic.sampler`."""

from paceline.torch.hvd.elastic.sampler import ElasticSampler as ElasticSampler
