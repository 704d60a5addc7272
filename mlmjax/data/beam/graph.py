"""The preparation as a graph of Apache Beam: documents flow, and no folder is shared but the last."""

from collections.abc import Sequence
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton

from mlmjax.data.beam import steps
from mlmjax.data.documents import Source
from mlmjax.data.preparation.destination import Folder
from mlmjax.data.preparation.reading import Reading
from mlmjax.data.preparation.tokenising import RowSettings


@dataclass(frozen=True)
class Graph:
    """Everything between the sources and the files in a folder.

    Attributes:
        sources: where documents come from.
        reading: how they are read, and what is dropped.
        rows: how they are laid in rows.
        heldout: share of the groups that is held out.
        folder: where to; the tokenizer is there.
    """

    sources: Sequence[Source]
    reading: Reading
    rows: RowSettings
    heldout: float
    folder: Folder

    def build(self, pipeline: beam.Pipeline) -> None:
        """Add all steps to a pipeline."""
        read = (
            pipeline
            | "Sources" >> beam.Create([tuple(self.sources)])
            | "Tasks" >> beam.FlatMap(steps.tasks)
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(steps.Read(self.reading)).with_outputs(
                "facts", "ids", "tasks", main="texts"
            )
        )
        _ = (
            read.ids
            | "First of an id" >> beam.combiners.Top.SmallestPerKey(2)
            | "Refuse repeated ids" >> beam.Map(steps.refuse_repeated)
        )
        different = (
            read.facts
            | "First of a text" >> beam.CombinePerKey(min)
            | "Place" >> beam.Map(steps.place)
        )
        chosen = self._without_near(different)
        extremes = (
            chosen
            | "Values" >> beam.Values()
            | "Extremes" >> beam.CombineGlobally(steps.FindExtremes())
        )
        tasks = read.tasks | "All tasks" >> beam.combiners.ToList()
        made = (
            {"texts": read.texts, "chosen": chosen | "Block" >> beam.Map(steps.block)}
            | "Join" >> beam.CoGroupByKey()
            | "Write rows"
            >> beam.ParDo(
                steps.WriteRows(self.folder, self.rows, self.heldout),
                AsSingleton(extremes),
                AsSingleton(tasks | "Number blocks" >> beam.Map(steps.first_blocks)),
            ).with_outputs("frequency", main="shards")
        )
        frequency = made.frequency | "Add frequencies" >> beam.CombineGlobally(steps.added)
        _ = (
            pipeline
            | "Once" >> beam.Create([self.folder])
            | "Write result"
            >> beam.Map(
                steps.write_result,
                AsSingleton(tasks),
                AsSingleton(different | "Count" >> beam.combiners.Count.Globally()),
                AsSingleton(extremes),
                AsList(made.shards),
                AsSingleton(frequency),
            )
        )

    def _without_near(self, different: beam.PCollection) -> beam.PCollection:
        """(place, units) of the documents that are not nearly an earlier one."""
        units = different | "Units" >> beam.Map(steps.units)
        threshold = self.reading.cleaning.near_duplicates
        if threshold is None:
            return units
        near = (
            different
            | "Bands" >> beam.FlatMap(steps.bands, threshold)
            | "Buckets" >> beam.GroupByKey()
            | "Compare" >> beam.FlatMap(steps.near, threshold)
        )
        return (
            {"units": units, "near": near}
            | "Join near-duplicates" >> beam.CoGroupByKey()
            | "Drop near-duplicates" >> beam.FlatMap(steps.not_near)
        )
