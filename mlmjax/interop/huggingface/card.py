"""The model card of an exported model."""

import json

from mlmjax.training.folder import Run, RunFolder


def model_card(run: Run, architecture: str, name: str) -> str:
    """Markdown with the front matter that model hubs read, and the run's manifest.

    Args:
        run: that was exported.
        architecture: the class that it was written as.
        name: of the model.
    """
    manifest = RunFolder(run.folder).manifest
    record = json.loads(manifest.read_text()) if manifest.exists() else {}
    text = run.tokenizer is not None
    fence = "```"
    return f"""---
library_name: transformers
tags: [mlmjax, {"fill-mask" if text else "masked-autoencoder"}]
---

# {name}

A {architecture} that was {f"trained for {run.step:,} steps" if run.step else "imported"} with mlmjax.

```python
from transformers import {"AutoTokenizer, " if text else ""}{architecture}

model = {architecture}.from_pretrained("{name}")
```

## How it was made

{fence}json
{json.dumps(record, indent=2)}
{fence}
"""
