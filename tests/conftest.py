"""Eight fake CPU devices and jaxtyping's runtime checker, before anything of the package is imported."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("mlmjax", "beartype.beartype")

settings.register_profile(
    "mlmjax",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("mlmjax")
