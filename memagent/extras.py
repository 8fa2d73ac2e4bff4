"""Which extra of the package brings a module that only some features need (``pip install 'memagent[NAME]'``)."""

from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {
    "vllm": "cpu",  # or gpu
    "openai": "openai",
    "docx": "office",
    "openpyxl": "office",
    "striprtf": "office",
    "bm25s": "evaluate",
    "dateutil": "evaluate",
    "matplotlib": "evaluate",
    "scipy": "evaluate",
    "PIL": "review",
    "multipart": "review",
    "starlette": "serve",
    "uvicorn": "serve",
    "mcp": "serve",
    "mcp_types": "serve",
    "prometheus_client": "serve",
    "prefect": "flows",
    "deepspeed": "train",
    "safetensors": "cpu",  # or gpu
    "torch": "cpu",  # or gpu
    "transformers": "train",
    "opentelemetry": "otel",
}
"""Top module of a package -> extra."""


def missing_extra(error: BaseException) -> str | None:
    """Return what to install for a module that is missing; None: the error is another one."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    besides = " (or 'memagent[gpu]')" if EXTRAS[module] == "cpu" else ""
    return f"{module} is not installed: pip install 'memagent[{EXTRAS[module]}]'{besides}"
