"""Tiny random models of many architectures of `transformers`: encoders, decoders, encoder-decoders, vision, audio, mixtures of
experts, state space. Each entry makes a module in eval mode and the keyword inputs of a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf

VOCABULARY = 99
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """`family` is encoder, decoder, encoder-decoder, vision, audio, moe, ssm or multimodal."""

    name: str
    family: str
    make: Callable[[], tuple[torch.nn.Module, Inputs]]


def _tokens(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def _text(config: str, model: str, **options: Any) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    def make() -> tuple[torch.nn.Module, Inputs]:
        sizes = {
            "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "use_cache": False,
        }  # fmt: skip
        module = getattr(tf, model)(getattr(tf, config)(**{**sizes, **options}))
        return module, {"input_ids": _tokens()}

    return make


def _decoder(config: str, model: str, **options: Any) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    return _text(config, model, **{"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, **options})


def _seq2seq(config: str, model: str, **options: Any) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    def make() -> tuple[torch.nn.Module, Inputs]:
        sizes = {
            "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
        }  # fmt: skip
        module = getattr(tf, model)(getattr(tf, config)(**{**sizes, **options}))
        return module, {"input_ids": _tokens(), "decoder_input_ids": _tokens(length=7)}

    return make


def _vision(config: str, model: str, size: int = 32, **options: Any) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    def make() -> tuple[torch.nn.Module, Inputs]:
        module = getattr(tf, model)(getattr(tf, config)(**options))
        return module, {"pixel_values": torch.randn(2, 3, size, size)}

    return make


_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "conv_dim": (16, 16),
    "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "vocab_size": VOCABULARY,
}  # fmt: skip


def _audio(config: str, model: str, **options: Any) -> Callable[[], tuple[torch.nn.Module, Inputs]]:
    def make() -> tuple[torch.nn.Module, Inputs]:
        module = getattr(tf, model)(getattr(tf, config)(**{**_AUDIO, **options}))
        return module, {"input_values": torch.randn(2, 800)}

    return make


def _whisper() -> tuple[torch.nn.Module, Inputs]:
    module, _ = _seq2seq(
        "WhisperConfig", "WhisperModel", max_source_positions=20, max_target_positions=20, num_mel_bins=8, suppress_tokens=None,
        begin_suppress_tokens=None,
    )()  # fmt: skip
    return module, {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": _tokens(length=5)}


def _clip() -> tuple[torch.nn.Module, Inputs]:
    text = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48,
            "max_position_embeddings": 16, "eos_token_id": 98}  # fmt: skip
    config = tf.CLIPConfig(text_config=text, vision_config=_VIT, projection_dim=16)
    return tf.CLIPModel(config), {"input_ids": _tokens(length=8), "pixel_values": torch.randn(2, 3, 32, 32)}


def _ast() -> tuple[torch.nn.Module, Inputs]:
    options = {k: v for k, v in _VIT.items() if k != "image_size"}
    config = tf.ASTConfig(**options, max_length=32, num_mel_bins=16, frequency_stride=8, time_stride=8)
    return tf.ASTModel(config), {"input_values": torch.randn(2, 32, 16)}


_MOE = {"num_experts_per_tok": 2, "head_dim": 8}
_RAW: tuple[tuple[str, str, Callable[[], tuple[torch.nn.Module, Inputs]]], ...] = (
    ("bert", "encoder", _text("BertConfig", "BertModel")),
    ("roberta", "encoder", _text("RobertaConfig", "RobertaModel")),
    ("xlm-roberta", "encoder", _text("XLMRobertaConfig", "XLMRobertaModel")),
    ("distilbert", "encoder", _text("DistilBertConfig", "DistilBertModel", dim=32, hidden_dim=48, n_layers=2, n_heads=4)),
    ("albert", "encoder", _text("AlbertConfig", "AlbertModel", embedding_size=16)),
    ("electra", "encoder", _text("ElectraConfig", "ElectraModel", embedding_size=16)),
    ("deberta-v2", "encoder", _text("DebertaV2Config", "DebertaV2Model")),
    ("mpnet", "encoder", _text("MPNetConfig", "MPNetModel")),
    ("convbert", "encoder", _text("ConvBertConfig", "ConvBertModel", embedding_size=16)),
    ("squeezebert", "encoder", _text("SqueezeBertConfig", "SqueezeBertModel", embedding_size=32)),
    ("mobilebert", "encoder", _text("MobileBertConfig", "MobileBertModel", embedding_size=16, intra_bottleneck_size=16)),
    ("roformer", "encoder", _text("RoFormerConfig", "RoFormerModel", embedding_size=32)),
    ("modernbert", "encoder", _text("ModernBertConfig", "ModernBertModel", cls_token_id=1, sep_token_id=2,
        bos_token_id=1, eos_token_id=2)),
    ("gpt2", "decoder", _decoder("GPT2Config", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    ("gpt-neo", "decoder", _decoder("GPTNeoConfig", "GPTNeoForCausalLM", num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]])),
    ("gpt-neox", "decoder", _decoder("GPTNeoXConfig", "GPTNeoXForCausalLM")),
    ("gptj", "decoder", _decoder("GPTJConfig", "GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4,
        n_positions=64)),
    ("opt", "decoder", _decoder("OPTConfig", "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32)),
    ("bloom", "decoder", _decoder("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=4)),
    ("llama", "decoder", _decoder("LlamaConfig", "LlamaForCausalLM")),
    ("mistral", "decoder", _decoder("MistralConfig", "MistralForCausalLM", sliding_window=8)),
    ("qwen2", "decoder", _decoder("Qwen2Config", "Qwen2ForCausalLM")),
    ("qwen3", "decoder", _decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=8)),
    ("gemma", "decoder", _decoder("GemmaConfig", "GemmaForCausalLM", head_dim=8)),
    ("gemma2", "decoder", _decoder("Gemma2Config", "Gemma2ForCausalLM", head_dim=8, sliding_window=8)),
    ("phi", "decoder", _decoder("PhiConfig", "PhiForCausalLM")),
    ("phi3", "decoder", _decoder("Phi3Config", "Phi3ForCausalLM")),
    ("stablelm", "decoder", _decoder("StableLmConfig", "StableLmForCausalLM")),
    ("falcon", "decoder", _decoder("FalconConfig", "FalconForCausalLM")),
    ("olmo", "decoder", _decoder("OlmoConfig", "OlmoForCausalLM")),
    ("starcoder2", "decoder", _decoder("Starcoder2Config", "Starcoder2ForCausalLM")),
    ("cohere", "decoder", _decoder("CohereConfig", "CohereForCausalLM")),
    ("mixtral", "moe", _decoder("MixtralConfig", "MixtralForCausalLM", num_local_experts=4, **_MOE)),
    ("qwen2-moe", "moe", _decoder("Qwen2MoeConfig", "Qwen2MoeForCausalLM", num_experts=4, moe_intermediate_size=16,
                                  shared_expert_intermediate_size=16, num_experts_per_tok=2)),
    ("olmoe", "moe", _decoder("OlmoeConfig", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2)),
    ("mamba", "ssm", _decoder("MambaConfig", "MambaForCausalLM", state_size=4)),
    ("mamba2", "ssm", _decoder("Mamba2Config", "Mamba2ForCausalLM", state_size=8, num_heads=8, head_dim=8, n_groups=1,
        chunk_size=4)),
    ("t5", "encoder-decoder", _seq2seq("T5Config", "T5Model", d_kv=8, d_ff=48, num_layers=2, num_heads=4)),
    ("bart", "encoder-decoder", _seq2seq("BartConfig", "BartModel")),
    ("mbart", "encoder-decoder", _seq2seq("MBartConfig", "MBartModel")),
    ("pegasus", "encoder-decoder", _seq2seq("PegasusConfig", "PegasusModel")),
    ("marian", "encoder-decoder", _seq2seq("MarianConfig", "MarianModel")),
    ("m2m100", "encoder-decoder", _seq2seq("M2M100Config", "M2M100Model")),
    ("vit", "vision", _vision("ViTConfig", "ViTModel", **_VIT)),
    ("deit", "vision", _vision("DeiTConfig", "DeiTModel", **_VIT)),
    ("beit", "vision", _vision("BeitConfig", "BeitModel", **_VIT)),
    ("dinov2", "vision", _vision("Dinov2Config", "Dinov2Model", **_VIT)),
    ("swin", "vision", _vision("SwinConfig", "SwinModel", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1],
        num_heads=[2, 4],
                               window_size=4)),
    ("convnext", "vision", _vision("ConvNextConfig", "ConvNextModel", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])),
    ("resnet", "vision", _vision("ResNetConfig", "ResNetModel", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2])),
    ("regnet", "vision", _vision("RegNetConfig", "RegNetModel", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2],
        groups_width=4)),
    ("mobilenet-v2", "vision", _vision("MobileNetV2Config", "MobileNetV2Model", image_size=32, depth_multiplier=0.25)),
    ("efficientnet", "vision", _vision("EfficientNetConfig", "EfficientNetModel", image_size=32, width_coefficient=0.25,
                                       depth_coefficient=0.25, hidden_dim=320)),
    ("segformer", "vision", _vision("SegformerConfig", "SegformerModel", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
                                    num_attention_heads=[1, 2, 2, 4], size=64)),
    ("poolformer", "vision", _vision("PoolFormerConfig", "PoolFormerModel", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])),
    ("wav2vec2", "audio", _audio("Wav2Vec2Config", "Wav2Vec2Model")),
    ("hubert", "audio", _audio("HubertConfig", "HubertModel")),
    ("whisper", "audio", _whisper),
    ("audio-spectrogram", "audio", _ast),
    ("clip", "multimodal", _clip),
)  # fmt: skip
ZOO: tuple[Architecture, ...] = tuple(Architecture(name, family, make) for name, family, make in _RAW)


def build(architecture: Architecture, seed: int = 0) -> tuple[torch.nn.Module, Inputs]:
    """A seeded module in eval mode and its inputs. Normalisation statistics and affine weights are random too: defaults of
    zero and one would hide a dropped term."""
    torch.manual_seed(seed)
    module, inputs = architecture.make()
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if value.is_floating_point() and value.ndim == 1 and not name.endswith("inv_freq"):
                value.add_(0.1 * torch.rand_like(value))
    return module.eval(), inputs
