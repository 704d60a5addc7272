"""From imported weights to a run folder."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from mlmjax.core.errors import UserError
from mlmjax.interop.folders import refuse_existing, written_whole
from mlmjax.interop.huggingface.reading import Imported, read
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import PACKAGES, RunFolder


def import_run(source: Path, out: Path, reader: Callable[[Path], Imported] = read) -> Imported:
    """Write the run folder of an imported model: config, manifest, tokenizer and a checkpoint of step 0.

    Args:
        source: the model; a folder of Hugging Face, where no other reader is given.
        out: the run folder, which must not exist.
        reader: reads the source.

    Raises:
        UserError: the model cannot be used, or the run folder cannot be written; nothing is left of it then.
    """
    refuse_existing(out)
    imported = reader(source)
    run = imported.run
    if run.tokenizer is None and run.config.data.abstract_vocabulary() is not None:
        raise UserError(
            f"{source} holds no tokenizer: put its tokenizer.json, its vocab.txt, or its vocab.json and merges.txt "
            "beside the weights."
        )
    with written_whole(out) as partial:
        _write(imported, source, RunFolder(partial), out)
    return imported


def _write(imported: Imported, source: Path, files: RunFolder, out: Path) -> None:
    run, config = imported.run, imported.run.config
    data = config.data
    if run.tokenizer is not None:
        run.tokenizer.save(files.tokenizer)
        path = str(RunFolder(out).tokenizer)
        tokenizer = data.tokenizer.updated(path=path)  # type: ignore[attr-defined]
        data = data.updated(tokenizer=tokenizer)
    config = config.updated(data=data, run=config.run.updated(folder=str(out)))
    if imported.origin is not None:
        imported.origin.save(Path(files.path), imported.buffers)
    record = {
        "versions": {name: version(name) for name in PACKAGES},
        "imported": {
            "from": source.resolve().name,
            "architecture": imported.architecture,
            "untrained": list(imported.untrained),
        },
        "tokenizer": None if run.tokenizer is None else run.tokenizer.hash,
        **({"data": {"classes": list(run.classes)}} if run.classes else {}),
        "model": config.model.model_dump(mode="json"),
    }
    files.manifest.write_text(json.dumps(record, indent=2) + "\n")
    with Checkpoints(files.checkpoints, writes=True) as checkpoints:
        checkpoints.save_parameters(0, imported.parameters)
    files.config.write_text(config.to_json())
