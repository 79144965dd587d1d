"""Large Qwen3 targets for memory and speed: layers share their numbers, and the file is written without holding it."""

import torch
from safetensors_reader import encode_header
from transformers import Qwen3Config, Qwen3ForCausalLM


def write_target(folder, seed=0, **sizes):
    """A tied Qwen3 in bfloat16; returns the bytes of its weights."""
    config = Qwen3Config(tie_word_embeddings=True, eos_token_id=None, bos_token_id=None, **sizes)
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Qwen3ForCausalLM(config).state_dict().items()}
    shapes.pop("lm_head.weight")
    generator = torch.Generator().manual_seed(seed)
    header, pieces, offset, made = {}, [], 0, {}
    for name, shape in shapes.items():
        kind = name.split(".", 3)[-1] if ".layers." in name else name
        if kind not in made:
            made[kind] = _weights(shape, generator)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(made[kind])]}
        offset += len(made[kind])
        pieces.append(made[kind])
    with open(folder / "model.safetensors", "wb") as stream:
        stream.write(encode_header(header))
        stream.writelines(pieces)
    return offset


def _weights(shape, generator):
    if len(shape) == 1:
        weights = 1 + 0.2 * torch.randn(shape, generator=generator)
    else:
        weights = torch.randn(shape, generator=generator) * 0.02
    return weights.bfloat16().view(torch.uint8).numpy().tobytes()
