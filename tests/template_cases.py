"""Schemas from which the tests make operators, each with its options for `new_op.py`."""

# Every template.
KINDS = [
    ["e(Tensor x, Tensor y) -> Tensor", "--template", "elementwise"],
    ["r(Tensor x, Tensor y) -> Tensor", "--template", "rowwise"],
    ["d(Tensor x, Tensor y) -> Tensor", "--template", "reduction"],
    ["s(Tensor x, Tensor y) -> Tensor", "--template", "scan"],
    ["m(Tensor x, Tensor y) -> (Tensor, Tensor)", "--template", "multi_output"],
    ["k(Tensor x, Tensor y) -> Tensor", "--template", "kernel"],
    ["n(Tensor x, Tensor y) -> (Tensor, Tensor)", "--template", "multi_output_kernel"],
    ["i(Tensor(a!) x, Tensor y) -> ()", "--template", "inplace"],
    ["w(Tensor(a!) x, Tensor y) -> ()", "--template", "inplace_kernel"],
]

# The same under names as long as they may be, which break other lines.
LONG = "a_name_that_is_as_long_as_the_tool_accepts_it"
LONG_NAMES = [
    *(
        [f"{LONG[: -len(kind)]}{kind}(Tensor x, float alpha=1.0) -> Tensor", "--template", kind]
        for kind in ("elementwise", "rowwise", "reduction", "scan", "kernel")
    ),
    *(
        [
            f"{LONG[: -len(kind)]}{kind}(Tensor x, float alpha=1.0) -> (Tensor, Tensor)",
            *("--template", kind),
        ]
        for kind in ("multi_output", "multi_output_kernel")
    ),
    *(
        [f"{LONG[: -len(kind)]}{kind}(Tensor(a!) x, float alpha=1.0) -> ()", "--template", kind]
        for kind in ("inplace", "inplace_kernel")
    ),
]

# Every shape of schema.
SCHEMAS = [
    ["gelu_gate(Tensor x, Tensor gate, Tensor? mask, float alpha=1.0, int[] dims=[]) -> Tensor"],
    ["one(Tensor one) -> Tensor"],
    [
        "no_defaults(Tensor q, int n, SymInt size, bool flag, str mode, ScalarType dtype, "
        "Device device, float[] scales, Layout layout, MemoryFormat memory_format, SymInt[] shape, "
        "int? maybe_n, float? maybe, bool? maybe_flag, str? maybe_mode, ScalarType? maybe_dtype, "
        "Device? maybe_device, int[]? maybe_dims, float[]? maybe_scales, Layout? maybe_layout, "
        "MemoryFormat? maybe_format, SymInt? maybe_size) -> Tensor"
    ],
    [
        "all_defaults(Tensor x, Tensor? w=None, int n=3, float eps=1e-05, bool flag=True, "
        "str mode='a\"b', ScalarType dtype=float, Device device='cpu', int[2] k=1, "
        "SymInt[] s=[1, 2], Layout layout=strided, MemoryFormat format=contiguous_format, "
        "str? m=None) -> Tensor",
        *("--template", "rowwise"),
    ],
    ["keyword_only(float a, Tensor x, *, bool flag=False, str mode, int? n=None) -> Tensor"],
    ["tensor_lists(Tensor x, Tensor[] rest, Tensor? z=None) -> Tensor"],
    ["several_lists(Tensor? z, Tensor x, Tensor[] rest, int n=2) -> (Tensor, Tensor, Tensor)"],
    [
        "switches(Tensor x, bool a, bool b, bool c=True, bool d=False) -> Tensor",
        "--backward",
        "torch",
    ],
    ["three(Tensor x, Tensor? mean, int n=2) -> (Tensor, Tensor, Tensor)"],
    ["torch_rows(Tensor x, Tensor? rows) -> (Tensor, Tensor)", "--backward", "torch"],
    ["torch_sum(Tensor x, float a) -> Tensor", "--template", "reduction", "--backward", "torch"],
    ["writes(Tensor(a!) x, float scale, Tensor? y, Tensor(b!) z, Tensor(c!) w, *, int n=1) -> ()"],
    ["writes_lists(Tensor? y, Tensor(a!) x, Tensor[] rest, Tensor(b!) z, float a) -> ()"],
    # Of which no batching rule follows.
    ["plain(Tensor x, Tensor y) -> Tensor", "--shapes", "n m, n m -> n m"],
    # A number that is a size, beside one that is called as a size of the template.
    [
        "sized(Tensor x, int heads, Tensor y, int n=2) -> Tensor",
        *("--template", "kernel", "--shapes", "*rows heads m, *rows heads m -> *rows heads m"),
    ],
    # Beside tensors of the rows' dtype, one of another.
    [
        "masked_rows(Tensor x, Tensor mask, Tensor y, float a) -> Tensor",
        *("--template", "rowwise", "--shapes", "*rows n, *rows n:bool, *rows n -> *rows n"),
    ],
    ["no_cuda(Tensor x, float a) -> Tensor", "--no-cuda", "--backward", "torch"],
    ["no_cpu(Tensor x, float a) -> Tensor", "--no-cpu"],
    ["no_grad(Tensor x, int n) -> (Tensor, Tensor, Tensor, Tensor)", "--no-grad"],
]

# Names that templates, C++ or Python use for something else, in every kind of operator.
_CPP = "int errno, int EOF, int NULL, float NAN, float INFINITY, float M_PI, int INT_MAX, int stdin"
_OWN = (
    "float tag, float row, float rows, float col, float cols, float sums, float means, float mean, "
    "float averages, float average, float A, float T, float i, float j, float f, float value, "
    "float term, float padded, int pair, int pairs, float end, int ends, float results, int half"
)
_PYTHON = (
    "int to_front, float checks, float info, float in_dims, float grad, float grad_output, "
    "int seed, int metadata, float needs_input_grad, str name='a'"
)
NAMES = [
    [
        "names(Tensor output, Tensor grad_output, Tensor result, int i, float f, bool value) "
        "-> Tensor",
    ],
    [
        "row_names(Tensor mean, Tensor rows, Tensor? output, float col, int average) "
        "-> (Tensor, Tensor)"
    ],
    [f"cpp_names(Tensor self, {_CPP}, int int, int register, float default, int x_) -> Tensor"],
    *(
        [
            f"own_{kind}(Tensor output, Tensor contiguous_output, {_OWN}) -> Tensor",
            *("--template", kind),
        ]
        for kind in ("elementwise", "rowwise", "reduction", "scan", "kernel")
    ),
    *(
        [
            f"own_{kind}(Tensor grad_mean, Tensor output, {_OWN}) -> (Tensor, Tensor, Tensor)",
            *("--template", kind),
        ]
        for kind in ("multi_output", "multi_output_kernel")
    ),
    *(
        [
            f"own_{kind}(Tensor(a!) output, Tensor tag_, Tensor contiguous_output, {_OWN}) -> ()",
            *("--template", kind),
        ]
        for kind in ("inplace", "inplace_kernel")
    ),
    [f"own_torch(Tensor grad_output, Tensor grad_input, {_OWN}) -> Tensor", "--backward", "torch"],
    [f"python_names(Tensor output, Tensor new_elementwise, {_PYTHON}) -> Tensor"],
    [f"python_rows(Tensor inputs, {_PYTHON}) -> Tensor", "--template", "rowwise"],
    [
        "python_lists(Tensor i, Tensor[] entry, Tensor y, Tensor[2] pair, Tensor? element, int[] j)"
        " -> Tensor"
    ],
    ["half(Tensor x, str s) -> Tensor"],
    ["t(Tensor x, int[] n) -> Tensor", "--template", "rowwise"],
    ["by_keyword(Tensor ctx, *, float inputs, int output, float args, str kwargs) -> Tensor"],
    [
        """strings(Tensor x, str a="a  b", str b="it's \\"q\\" \\\\ \\n", str c="??=", """
        """str d=") -> Tensor", str e="%s{}", str f="", str g='a"b', str h="//") -> Tensor"""
    ],
]

# Shapes for which no template's kernel is, of results and gradients too: it reads and writes all of
# them as one of them.
_LINE = "*rows m, *rows m k -> *rows m k"
OTHER_SHAPES = [
    *(
        [f"other_{kind}(Tensor x, Tensor y) -> Tensor", "--template", kind, "--shapes", _LINE]
        for kind in ("elementwise", "rowwise", "reduction", "scan", "kernel")
    ),
    *(
        [
            f"other_{kind}(Tensor x, Tensor y) -> (Tensor, Tensor)",
            *("--template", kind, "--shapes", f"{_LINE}, *rows m k:sum"),
        ]
        for kind in ("multi_output", "multi_output_kernel")
    ),
    *(
        [
            f"other_{kind}(Tensor(a!) x, Tensor y) -> ()",
            *("--template", kind, "--shapes", "*rows m, *rows m k ->"),
        ]
        for kind in ("inplace", "inplace_kernel")
    ),
    [
        "other_lists(Tensor? y, Tensor x, Tensor[] rest, *, float a=2.0) -> Tensor",
        *("--shapes", "*rows m k:x, *rows m, *rows m k -> *rows m", "--backward", "torch"),
    ],
    [
        "other_optional(Tensor? y, Tensor x, float sizes, float checked) -> Tensor",
        *("--template", "rowwise", "--shapes", "*rows m k:x, *rows m -> *rows m", "--no-grad"),
    ],
]

# Dtypes of their own, which the pointers of kernels have to have: all that there are, of arguments
# and of results; and such that no tensor gives the operator one.
DTYPES = (
    *("bool", "float8_e5m2", "float8_e4m3fn", "float16", "bfloat16", "uint8", "int8", "int16"),
    *("int32", "int64", "float32", "float64", "complex64", "complex128"),
)
_EVERY = ", ".join(f"*rows n:{dtype}" for dtype in DTYPES)
# Those of a functor for rows.
OF_ROWS = [dtype for dtype in DTYPES if not dtype.startswith("complex")]
_OF_ROWS = ", ".join(f"*rows n:{dtype}" for dtype in OF_ROWS)
TYPED = [
    [
        f"every_dtype(Tensor x, {', '.join(f'Tensor y{k}' for k in range(len(DTYPES)))}) -> "
        f"(Tensor{', Tensor' * len(DTYPES)})",
        *("--template", "multi_output_kernel", "--shapes"),
        f"*rows n, {_EVERY} -> *rows n:int8, {_EVERY.replace(' n', '')}",
    ],
    [
        f"row_dtypes(Tensor x, {', '.join(f'Tensor y{k}' for k in range(len(OF_ROWS)))}, Tensor s) "
        f"-> (Tensor{', Tensor' * len(OF_ROWS)})",
        *("--template", "multi_output", "--shapes"),
        f"*rows n, {_OF_ROWS}, *rows n:sum -> *rows n:int8, {_OF_ROWS.replace(' n', '')}",
    ],
    [
        "any_dtype(Tensor x, Tensor? wide, Tensor[] rest, Tensor any, Tensor like) -> Tensor",
        "--shapes",
        "*rows n, *rows n:wide, *rows n:any, *rows n:any, *rows n:x -> *rows n:sum",
    ],
    [
        "whole_numbers(Tensor x, Tensor y) -> (Tensor, Tensor)",
        *("--template", "multi_output_kernel", "--shapes"),
        "*rows n:int64, *rows n:bool -> *rows n:int32, *rows:int64",
    ],
    [
        "complex_numbers(Tensor x, Tensor y) -> Tensor",
        *("--template", "kernel", "--no-grad", "--shapes"),
        "*rows n:complex64, *rows n:any -> *rows n:complex128",
    ],
    [
        "codes(Tensor(a!) codes, Tensor? x, Tensor y, Tensor(b!) sums) -> ()",
        *("--template", "inplace_kernel", "--shapes"),
        "*rows n:uint8, *rows n:y, *rows n, *rows n:sum ->",
    ],
    [
        "cache(Tensor(a!) codes, Tensor x) -> ()",
        *("--template", "inplace_kernel", "--shapes", "*rows n:int8, *rows n ->"),
    ],
]

CASES = [*KINDS, *LONG_NAMES, *SCHEMAS, *NAMES, *OTHER_SHAPES, *TYPED]


def name(case: list[str]) -> str:
    return case[0].partition("(")[0]


# Of which CI builds others that see nearly the same: a functor, a kernel of rows, one that writes
# to its arguments.
_REPEATED = {
    *("own_elementwise", "own_reduction", "own_kernel", "own_multi_output", "own_inplace_kernel"),
    *("other_reduction", "other_kernel", "other_multi_output", "other_inplace_kernel"),
    *("t", "by_keyword"),
}


def without_repeated(cases: list[list[str]]) -> list[list[str]]:
    return [case for case in cases if name(case) not in _REPEATED]
