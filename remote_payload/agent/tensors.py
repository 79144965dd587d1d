"""Tensors and storages as a torch pickle describes them: numbers and names, no bytes.

Source of the layouts: torch/_utils.py (`_rebuild_*`) and torch/serialization.py (`persistent_id`).
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from remote_payload.agent.unpickler import Global, Understood
from remote_payload.agent.verdicts import Refusal


class Dtype(NamedTuple):
    """A torch dtype: bytes an element, its name in safetensors (None: it has none), bytes swapped as one unit."""

    name: str
    size: int
    code: Optional[str]
    unit: int


_TABLE = (
    ("float64", 8, "F64"), ("float32", 4, "F32"), ("float16", 2, "F16"), ("bfloat16", 2, "BF16"),
    ("int64", 8, "I64"), ("int32", 4, "I32"), ("int16", 2, "I16"), ("int8", 1, "I8"),
    ("uint64", 8, "U64"), ("uint32", 4, "U32"), ("uint16", 2, "U16"), ("uint8", 1, "U8"), ("bool", 1, "BOOL"),
    ("float8_e4m3fn", 1, "F8_E4M3"), ("float8_e5m2", 1, "F8_E5M2"), ("float8_e8m0fnu", 1, "F8_E8M0"),
    ("float8_e4m3fnuz", 1, "F8_E4M3FNUZ"), ("float8_e5m2fnuz", 1, "F8_E5M2FNUZ"), ("complex64", 8, "C64"),
    ("complex128", 16, None), ("complex32", 4, None), ("float4_e2m1fn_x2", 1, None),
    ("qint8", 1, None), ("quint8", 1, None), ("qint32", 4, None),
)  # fmt: skip
DTYPES: Dict[str, Dtype] = {
    name: Dtype(name, size, code, size // 2 if name.startswith("complex") else size) for name, size, code in _TABLE
}
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "ComplexHalf": "complex32", "QInt8": "qint8", "QUInt8": "quint8",
    "QInt32": "qint32", "Untyped": "uint8", "_Untyped": "uint8",
}  # fmt: skip
MAX_DIMENSIONS = 64
MAX_ELEMENTS = 1 << 62


class Storage:
    """A flat piece of memory that tensors look into. `size` is in bytes."""

    __slots__ = ("dtype", "key", "size")

    def __init__(self, key: str, dtype: Dtype, size: int) -> None:
        self.key = key
        self.dtype = dtype
        self.size = size


class Tensor:
    """A view of a storage. `offset` and `stride` count elements, as torch does."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(self, storage: Storage, dtype: Dtype, offset: int, shape: Tuple[int, ...], stride: Tuple[int, ...]):
        self.storage = storage
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self.stride = stride

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def size(self) -> int:
        """Bytes of the tensor laid out contiguously."""
        return self.elements * self.dtype.size

    @property
    def span(self) -> int:
        """Bytes from its first to after its last element inside the storage."""
        if not self.elements:
            return 0
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride))) * self.dtype.size

    @property
    def start(self) -> int:
        """Byte inside the storage at which its first element begins."""
        return self.offset * self.dtype.size

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and step != expected:
                return not self.elements
            expected *= size
        return True

    def same_bytes(self) -> Tuple[Any, ...]:
        """Equal for two names of one tensor."""
        return self.storage.key, self.dtype.name, self.offset, self.shape, self.stride


class Storages:
    """All storages that a pickle names, and torch's own functions answered. Sizes of one key must agree."""

    def __init__(self) -> None:
        self.by_key: Dict[str, Storage] = {}

    def persistent(self, identity: Any) -> Storage:
        """('storage', type, key, location, elements[, view]) as a Storage. Raises Refusal for anything else."""
        if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
            raise Refusal("a persistent value that is no storage")
        kind, key, elements = identity[1], identity[2], identity[4]
        name = kind.name.rpartition(".")[2] if isinstance(kind, Global) else ""
        dtype = DTYPES.get(_STORAGES.get(name[: -len("Storage")], "")) if name.endswith("Storage") else None
        if dtype is None:
            raise Refusal("a storage of the unknown kind %r" % name)
        if not isinstance(key, str) or type(elements) is not int or not 0 <= elements <= MAX_ELEMENTS:
            raise Refusal("a storage without key or size")
        if len(identity) == 6 and identity[5] is not None:
            raise Refusal("storage %r is a view of another one, as torch wrote before 0.4" % key)
        known = self.by_key.get(key)
        if known is None:
            known = self.by_key[key] = Storage(key, dtype, elements * dtype.size)
        elif known.size != elements * dtype.size:
            raise Refusal("storage %r has two sizes: %d and %d bytes" % (key, known.size, elements * dtype.size))
        return known if known.dtype is dtype else Storage(key, dtype, known.size)


def _tensor(storage: Any, dtype: Optional[Dtype], offset: Any, shape: Any, stride: Any) -> Tensor:
    """A checked view. Raises ValueError for what can't be one, which leaves a placeholder in its place."""
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise ValueError("not a view of a storage")
    if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(shape) != len(stride):
        raise ValueError("shape and stride differ in length")
    if len(shape) > MAX_DIMENSIONS or any(type(n) is not int or not 0 <= n <= MAX_ELEMENTS for n in shape + stride):
        raise ValueError("not a shape")
    tensor = Tensor(storage, dtype or storage.dtype, offset, shape, stride)
    if tensor.elements > MAX_ELEMENTS or tensor.start + tensor.span > storage.size:
        raise ValueError("reaches past its storage")
    return tensor


def _rebuild_v2(arguments: Tuple[Any, ...]) -> Tensor:
    return _tensor(arguments[0], None, *arguments[1:4])


def _rebuild_v3(arguments: Tuple[Any, ...]) -> Tensor:
    dtype = arguments[6]
    return _tensor(arguments[0], DTYPES[dtype.name.rpartition(".")[2]], *arguments[1:4])


def _rebuild_parameter(arguments: Tuple[Any, ...]) -> Tensor:
    if not isinstance(arguments[0], Tensor):
        raise ValueError("a parameter that is no plain tensor")
    return arguments[0]


def _rebuild_with_attributes(arguments: Tuple[Any, ...]) -> Tensor:
    """A tensor with Python attributes: (function, class, arguments, state). Subclasses stay placeholders."""
    function, kind, inner = arguments[0], arguments[1], arguments[2]
    if kind.name not in (
        "torch.Tensor",
        "torch._tensor.Tensor",
        "torch.nn.parameter.Parameter",
        "torch.nn.parameter.Buffer",
    ):
        raise ValueError("a subclass of Tensor")
    tensor = UNDERSTOOD[function.name](inner)
    if not isinstance(tensor, Tensor):
        raise ValueError("not a tensor")
    return tensor


def _dictionary(arguments: Tuple[Any, ...]) -> Dict[Any, Any]:
    """OrderedDict() and defaultdict(factory): empty ones; their items follow as SETITEMS."""
    if len(arguments) > 1 or (arguments and not (arguments[0] is None or isinstance(arguments[0], Global))):
        raise ValueError("a dictionary made of something")
    return {}


def _ordered(arguments: Tuple[Any, ...]) -> Dict[Any, Any]:
    """OrderedDict([[key, value], ...]) as Python 2 pickled it."""
    if not arguments:
        return {}
    pairs: List[Any] = arguments[0]
    if not isinstance(pairs, list) or len(pairs) > 4096 or any(type(p) is not list or len(p) != 2 for p in pairs):
        raise ValueError("not pairs")
    if any(not isinstance(key, str) for key, _ in pairs):
        raise ValueError("not named")
    return dict(pairs)


def _size(arguments: Tuple[Any, ...]) -> Tuple[Any, ...]:
    if len(arguments) != 1 or not isinstance(arguments[0], tuple):
        raise ValueError("not a size")
    return arguments[0]


UNDERSTOOD: Understood = {
    "torch._utils._rebuild_tensor": _rebuild_v2,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_with_attributes,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _dictionary,
    "torch.Size": _size,
}
