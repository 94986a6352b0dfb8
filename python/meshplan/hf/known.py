"""Fields of a ``config.json`` that are understood and cost nothing, and what to do with the rest.

A field that nobody read is one of three things. Listed here: it changes no shape. Not listed, and
named like a size, a count or a switch of structure: an error, because a plan that ignores it may be
wrong. Not listed and named like neither: an assumption, printed for the reader to judge.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meshplan.hf.fields import Fields

_ANY_FAMILY: Final = """
    _name_or_path _provenance architectures auto_map model_type transformers_version tokenizer_class
    name source comment license
    hidden_act hidden_activation activation activation_function mlp_hidden_act mamba_hidden_act
    activation_situ_beta activation_situ_linear_beta gelu_approximate rotary_pct rotary_dim
    rotary_emb_base rotary partial_rotary_factor position_embedding_type alibi alibi_bias_max
    mla_use_nope nope use_mrope no_rope_layers no_rope_layer_interval embedding_fraction
    original_max_position_embeddings
    initial_context_length max_sequence_length max_seq_length n_ctx model_max_length
    scale_embedding embedding_multiplier logits_scaling residual_multiplier attention_multiplier
    embedding_multiplier_scale output_multiplier_scale attn_output_multiplier mup_base_width
    query_pre_attn_scalar attn_scale attn_temperature_tuning floor_scale attention_value_scale
    attn_logit_softcapping final_logit_softcapping attn_logits_soft_cap logit_scale logits_scale
    scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn softmax_scale
    clip_qkv clip_sqrt_softmax_scale logit_soft_cap qk_norm_type use_gemma_norm
    scoring_func score_function topk_method norm_topk_prob norm_expert_weight routed_scaling_factor
    moe_renormalize moe_router_activation_func moe_router_scaling_factor moe_router_dtype
    moe_router_topk_scaling_factor use_grouped_topk use_routing_bias use_moe_router_bias
    need_fp32_gate use_moe seq_aux aux_loss_alpha router_aux_loss_coef router_z_loss_coef
    moe_loss_weight output_router_logits router_jitter_noise input_jitter_noise
    moe_jitter_eps moe_normalize_expert_weights uniform_expert_assignment moe_capacity_factor
    moe_shared_expert_overlap ep_size moe_every_n_layers
    swiglu_limit swiglu_alpha swiglu_limits swiglu_limits_shared
    hc_eps hc_sinkhorn_iters compress_rope_theta gate_lower_bound
    rope_interleave indexer_rope_interleave use_rope rope_scaling rope_parameters
    chunk_size expand time_step_floor time_step_max time_step_min time_step_limit time_step_rank
    num_logits_to_keep rescale_prenorm_residual residual_in_fp32 use_mamba_kernels
    full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor
    layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha
    layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta
    use_parallel_residual apply_residual_connection_post_layernorm layer_norm_elementwise_affine
    use_bidirectional_attention cache_implementation use_cache is_decoder is_encoder_decoder
    is_causal pretraining_tp slow_but_exact parallel_attn
    attn_implementation _attn_implementation attn_impl attn_uses_sequence_id prefix_lm
    init_device init_config initializer_range initializer_factor fc_type norm_type verbose
    softmax_bias emb_pdrop resid_pdrop attn_pdrop embd_pdrop
    summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout task_specific_params id2label label2id num_labels problem_type
    vocab_size_per_layer_input mm_tokens_per_image vision_soft_tokens_per_image
    vision_feature_layer vision_feature_select_strategy projector_hidden_act
    multimodal_projector_bias
    image_seq_length image_placeholder video_placeholder use_unified_vision_chunk ignore_index
    image_token image_token_len im_start_token im_end_token im_patch_token
    ignored_layers quantization_config compression_config skip_modules
    torch_dtype dtype expert_dtype use_bfloat16 fp32_lm_head
    _commit_hash _from_model_config tie_encoder_decoder torchscript return_dict
    eos_token pad_token bos_token unk_token force_download
"""

IRRELEVANT: Final = frozenset(_ANY_FAMILY.split())
"""Fields without an effect on parameters, FLOPs or KV bytes, in any family."""

FAMILY: Final[dict[str, frozenset[str]]] = {
    # One layer in each module, and all layers of one kind of attention.
    "minimax_m2": frozenset({"mtp_transformer_layers", "attn_type_list", "shared_moe_mode"}),
    "bloom": frozenset({"skip_bias_add", "skip_bias_add_qkv", "offset_alibi"}),
    "dbrx": frozenset({"ffn_act_fn"}),
    "grok-1": frozenset({"max_attn_value"}),
    "phi3": frozenset({"full_attn_mod", "interpolate_factor"}),
    "cohere2": frozenset(
        {
            "order_of_interleaved_layers", "use_embedding_sharing", "use_gated_activation",
            "use_parallel_block", "use_parallel_embedding",
        }
    ),
    "step3p7": frozenset(
        {
            "att_impl_type", "use_qk_norm", "use_rope_layers", "moe_router_activation",
            "zero_centered", "partial_rotary_factors", "yarn_only_types",
        }
    ),
}  # fmt: skip
"""Fields without an effect in one family only."""

_GENERATION: Final = """
    add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward
    cross_attention_hidden_size diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size
    num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_scores prefix
    pruned_heads remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
    temperature tf_legacy_loss top_k top_p typical_p decoder_start_token_id
"""

GENERATION: Final = frozenset(_GENERATION.split())
"""Generation settings that old versions of Transformers wrote into every config."""

PATTERNS: Final = re.compile(
    r"""
    (^|_)(token_id|token_ids|token_index|token_idx)$ | _token_id(s)?$ | token_index$
    | eps(ilon)?$ | dropout | pdrop$ | ^rope_ | _rope_theta$ | ^rotary_ | theta$ | _coef$ | jitter
    | softcap | ^init_ | initializer | _init$ | in_fp32$ | _(alpha|beta)_factor$
    | ^output_ | ^_ | _version$ | ^use_flash | implementation$
    | ^summary_ | ^fused_ | ^use_fused | ^gradient_checkpointing | ^vision_ | ^image_ | ^video_
    | ^audio_ | ^mm_ | ^projector_ | noise$ | ^router_.*loss | aux_loss | _loss_
    """,
    re.VERBOSE,
)
"""Names that never change a shape of the language model."""

COST: Final = re.compile(
    r"""
    size|dim|width|hidden|inner|intermediate|ffn|mlp|mult|expan|rank|lora|head|layer|block|depth
    |expert|moe|router|top_?k|shared|group|kv|attn|attention|window|chunk|conv|kernel|state|ssm|mamba
    |linear|recur|vocab|embed|norm|bias|tie|position|mtp|nextn|predict|stream|pattern|freq|interval
    |interleave|every|num_|^n_|cross|encoder|altup|laurel|memory|sparse|index|compress|latent|ratio
    """,
    re.VERBOSE,
)
"""Names that suggest a size, a count or a switch of structure."""


def irrelevant(name: str) -> bool:
    """Say whether a field is known to cost nothing."""
    return name in IRRELEVANT or name in GENERATION or bool(PATTERNS.search(name))


def check_rest(f: Fields, family: str, *, wrapper: bool = False) -> None:
    """Refuse what may cost and is not understood; note what is only unknown.

    The fields of a wrapper concern its towers and projector, not the language model: never refused.
    """
    for name in f.unread():
        value = f.data[name]
        if (
            irrelevant(name)
            or name in FAMILY.get(family, ())
            or value in (None, False, 0, "", [], {})
        ):
            continue
        if wrapper:
            f.assume(f"{f.prefix}{name} of {family} is taken not to touch the language model")
        elif COST.search(name.lower()):
            f.problem(
                name,
                f"is not understood for {family}, and its name suggests that it changes the cost",
                hint="remove it if it has no effect on sizes, or state the model with fields that "
                "`planner models` reads",
            )
        else:
            f.assume(f"{f.prefix}{name} is not known and is taken to cost nothing")
    for child in f.children:
        check_rest(child, family, wrapper=wrapper)
