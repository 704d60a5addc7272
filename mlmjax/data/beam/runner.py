"""Runners of Apache Beam: found by name, with their options, and made to say what went wrong."""

import contextlib
import difflib
import io
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mlmjax.core.errors import UserError

_RUNNERS = ("DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner")
_WORKER = re.compile(r"mlmjax\.core\.errors\.UserError: ([^\n]+)")
_STEP = re.compile(r" \[while running '[^']*'\]\s*$")


@dataclass(frozen=True)
class Job:
    """How a pipeline is run.

    Attributes:
        name: of the runner, as it was asked for.
        runner: Beam's.
        options: Beam's.
        here: whether it runs in this process.
    """

    name: str
    runner: Any
    options: Any
    here: bool

    @property
    def elsewhere(self) -> bool:
        """Whether workers cannot share a disk with this machine."""
        return "Dataflow" in type(self.runner).__name__

    @staticmethod
    def of(name: str, flags: Sequence[str]) -> "Job":
        """The runner and options of a command line.

        Raises:
            UserError: Beam is not installed, or there is no such runner or option.
        """
        _beam()
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner
        from apache_beam.runners.portability.portable_runner import PortableRunner
        from apache_beam.runners.runner import create_runner

        try:
            # DirectRunner would download another runner, Prism, and run that.
            direct = name.lower() in ("directrunner", "direct")
            runner = FnApiRunner() if direct else create_runner(name)
        except (ValueError, ImportError, AttributeError) as error:
            why = f" ({_last_line(error)[:-1]})" if isinstance(error, ImportError) else ""
            raise UserError(
                f"Beam has no runner {name} here{why}: choose --runner {', '.join(_RUNNERS)}, or one of "
                "another module by its full name."
            ) from error
        # A portable runner asks its job server for the options that there are.
        options = _options(flags, strict=not isinstance(runner, PortableRunner))
        return Job(name, runner, options, isinstance(runner, FnApiRunner))

    def run(self, graph: Any) -> None:
        """Run a graph to its end.

        Raises:
            UserError: what a worker could not use; or the runner failed.
        """
        beam = _beam()
        with _messages(shown=not self.here):
            running = None
            try:
                pipeline = beam.Pipeline(runner=self.runner, options=self.options)
                graph.build(pipeline)
                running = pipeline.run()
                running.wait_until_finish()
            except Exception as error:
                if (interruption := _interruption(error)) is not None:
                    raise interruption from None
                if (sentence := self._sentence(error)) is not None:
                    raise UserError(sentence) from error
                raise
            except BaseException:
                if running is not None:
                    with contextlib.suppress(Exception):
                        running.cancel()
                raise

    def _sentence(self, error: Exception) -> str | None:
        """What to tell the user of an error of Beam, which holds a worker's as text; nothing of one
        that is not the user's."""
        if isinstance(error, UserError):
            return _STEP.sub("", str(error))
        if found := _WORKER.search(str(error)):
            return _STEP.sub("", found[1])
        return None if self.here else f"The pipeline failed on {self.name}: {_last_line(error)}"


def _interruption(error: BaseException | None) -> BaseException | None:
    """What interrupted a worker in this process, which Beam takes for an error of the worker's."""
    while error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        error = error.__context__
    return error


def _options(flags: Sequence[str], *, strict: bool) -> Any:
    """Beam's options.

    Raises:
        UserError: one has a bad value; or is unknown, where it is strict.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _messages(shown=False):
            options = PipelineOptions(list(flags))
            known = options.get_all_options()
            given = options.get_all_options(drop_default=True, retain_unknown_options=True)
    except SystemExit as end:
        if not end.code:  # it was --help
            raise
        why = _last_line(said.getvalue()).rpartition("error: ")[2]
        raise UserError(f"Beam cannot use its options (behind --): {why}") from end
    unknown = [f"--{name}" for name in given if name not in known]
    unknown += [flag for flag in flags[:1] if not flag.startswith("-")]
    if unknown and strict:
        close = difflib.get_close_matches(unknown[0], [f"--{name}" for name in known], n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UserError(f"Beam has no option {unknown[0]} (behind --).{hint}")
    if options.get_all_options(drop_default=True).get("runner"):
        raise UserError("The runner stands before --: mlmjax prepare CONFIG --runner RUNNER.")
    return options


def _beam() -> ModuleType:
    """The package ``apache_beam``.

    Raises:
        UserError: it is not installed.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns of packages for other clouds
    try:
        import apache_beam
    except ImportError as error:
        raise UserError(
            f"--runner needs Apache Beam ({error}): pip install 'mlmjax[beam]'"
        ) from error
    finally:
        logging.disable(disabled)
    return apache_beam


@contextlib.contextmanager
def _messages(*, shown: bool) -> Iterator[None]:
    """In here Beam's messages are shown, from what it informs about, or none of them are.

    What goes wrong is raised in any case.
    """
    logger = logging.getLogger("apache_beam")
    level = logger.level
    if shown:
        logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO if shown else logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _last_line(said: Exception | str) -> str:
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return (lines[-1] if lines else type(said).__name__).rstrip(".") + "."
