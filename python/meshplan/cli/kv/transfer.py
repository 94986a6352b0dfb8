"""``planner kv transfer``: moving caches from prefill to decode instances."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.cli.kv.replay import Json
from meshplan.cli.kv.show import print_json
from meshplan.errors import InputError
from meshplan.units import (
    UnitError,
    format_bytes,
    format_seconds,
    parse_bytes_per_s,
    parse_seconds,
)


def transfer(
    model: Annotated[str, typer.Option(help="Preset, config.json or folder.")],
    prompt: Annotated[int, typer.Option(help="Prompt, tokens.")],
    cached: Annotated[int, typer.Option(help="Of it cached on the decode side.")] = 0,
    kv_dtype: Annotated[str, typer.Option(help="Cache format.")] = "auto",
    prefill_tp: Annotated[int, typer.Option(help="Ranks of the prefill side.")] = 1,
    decode_tp: Annotated[int, typer.Option(help="Ranks of the decode side.")] = 1,
    prefill_links: Annotated[int | None, typer.Option(help="NICs (default: one a rank).")] = None,
    decode_links: Annotated[int | None, typer.Option(help="NICs (default: one a rank).")] = None,
    link: Annotated[str, typer.Option(help="One NIC, each way.")] = "400 Gb/s",
    latency: Annotated[str, typer.Option(help="Until the first byte moves.")] = "0 s",
    prefill_time: Annotated[str, typer.Option(help="Prefill of the request.")] = "0 s",
    layer_groups: Annotated[
        int, typer.Option(help="Groups of layers moved as they are done (1: at the end).")
    ] = 1,
    pulls: Annotated[int, typer.Option(help="Requests pulled at once.")] = 1,
    duplicate: Annotated[
        bool, typer.Option("--duplicate", help="Each decode rank pulls its own copy.")
    ] = False,
    json: Json = False,
) -> None:
    """Bytes and time of moving one request's cache, whole or behind its prefill."""
    from meshplan.kv.transfer import Route
    from meshplan.kv.transfer import transfer as run

    field = "--link"
    try:
        link_bytes_per_s = parse_bytes_per_s(link)
        field = "--latency"
        latency_s = parse_seconds(latency)
        field = "--prefill-time"
        prefill_s = parse_seconds(prefill_time)
    except UnitError as error:
        raise InputError(error.rule, field=field, value=error.value, hint=error.hint) from None
    route = Route(
        prefill_tp=prefill_tp,
        decode_tp=decode_tp,
        prefill_links=prefill_tp if prefill_links is None else prefill_links,
        decode_links=decode_tp if decode_links is None else decode_links,
        link_bytes_per_s=link_bytes_per_s,
        latency_s=latency_s,
        prefill_s=prefill_s,
        layer_groups=layer_groups,
        pulls=pulls,
        duplicate=duplicate,
    )
    answer = run(model, prompt, route, cached=cached, kv_dtype=kv_dtype)
    if json:
        from dataclasses import asdict

        print_json(asdict(answer))
        return
    print(f"cache to move     {format_bytes(answer.bytes)}")
    print(f"unique slices     {answer.unique_slices}")
    print(f"over the links    {format_bytes(answer.wire_bytes)}")
    print(f"busiest link      {format_bytes(answer.busiest_link_bytes)}")
    print(f"whole             {format_seconds(answer.whole_s)}")
    print(f"adds to TTFT      {format_seconds(answer.exposed_s)}")
    print(f"links carry       {answer.max_requests_per_s:.4g} requests/s")
