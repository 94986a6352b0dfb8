"""Errors in the words of the command line: the flag that was typed, not the field it fills."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from meshplan.errors import InputError

if TYPE_CHECKING:
    from meshplan.errors import Problem

FIELDS = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "decode_context_parallel": "dcp",
    "prefill_context_parallel": "pcp",
    "expert_parallel": "ep",
    "pipeline_layers": "pp_layers",
    "block_tokens": "block_size",
    "max_len": "max_model_len",
    "chunk_tokens": "chunk",
    "prefix_tokens": "shared_prefix",
    "share": "gpu_memory_utilization",
    "memory_share": "gpu_memory_utilization",
    "free_fraction": "free_gpu_memory_fraction",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "tokens_per_rank": "tokens",
    "measured": "fit",
    "routing.left": "routing",
    "routing.alpha": "routing",
    "routing.s": "routing",
    "routing.sigma": "routing",
    "links.nvlink_bytes_per_s": "nvlink",
    "links.nic_bytes_per_s": "nic",
    "flops_per_s": "flops",
    "balanced_layer_s": "layer_time",
    "stall_s": "stall",
}
"""Field of a question → parameter of the command, where they are called differently."""


class FlagCommand(TyperCommand):
    """A command whose errors name its flags, and point to its help where nothing else is known."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            flags = {
                param.name: _flag(param.name, param.opts)
                for param in self.params
                if param.param_type_name == "option"
            }
            help_of = f"see {ctx.command_path} --help"
            named = [_named(problem, flags, help_of) for problem in error.problems]
            raise InputError.all_of(named) from None


def _flag(name: str, spellings: list[str]) -> str:
    """Spelling of an option that its parameter is called after, else its longest one."""
    flag = "--" + name.replace("_", "-")
    return flag if flag in spellings else max(spellings, key=len)


def _named(problem: Problem, flags: dict[str, str], help_of: str) -> Problem:
    flag = flags.get(FIELDS.get(problem.field, problem.field), problem.field)
    hint = problem.hint
    if not hint and flag.startswith("--"):
        hint = help_of
    return replace(problem, field=flag, hint=hint)
