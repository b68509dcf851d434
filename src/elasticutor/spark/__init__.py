"""Elastic executors hosted by Spark: the only package that imports pyspark."""

from elasticutor.spark.cluster import Cluster, submit

__all__ = ["Cluster", "submit"]
