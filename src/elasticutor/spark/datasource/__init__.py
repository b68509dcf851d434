"""PySpark's Python data sources as the sources and sinks of a topology.

Whatever was written for `spark.readStream.format(…)` or `df.writeStream.format(…)` in Python can
feed a topology or take its outputs. The processes that do so are plain Python: there is no JVM in
them and no SparkContext, and so no registered names either. Give the class itself.

```
topology.source("clicks", DataSourceSource(ClicksDataSource, {"topic": "clicks"}))
topology.sink("out", DataSourceSink(TableDataSource, {"path": path}), counts)
```
"""

from elasticutor.spark.datasource.given import DataSourceError
from elasticutor.spark.datasource.sink import DataSourceSink
from elasticutor.spark.datasource.source import DataSourceSource

__all__ = ["DataSourceError", "DataSourceSink", "DataSourceSource"]
