"""The battery is itself tested: it finds what is broken, and nothing where nothing is."""

import dataclasses
import inspect
import random

import expecttest
import pytest
import torch
from mutants import broken, sound
from process_state import changes, process_state, unchanged_process

from extension_cpp import _loader, ops, registration, testing
from extension_cpp.battery.choices import main_shape
from extension_cpp.battery.surroundings import poisoned
from extension_cpp.battery.tolerance import tolerance
from extension_cpp.shapes import Operator

SOUND = [
    *(sound.FusedOp, sound.ScaleInPlace, sound.Centre, sound.Round, sound.Pick, sound.Scale),
]
MUTANTS = [
    mutant
    for mutant in vars(broken).values()
    if inspect.isclass(mutant)
    and hasattr(mutant, "caught_by")
    and getattr(mutant, "only_on", "cpu") in testing.devices()
]
_operators = {}


def spec_of(operator):
    # An operator is defined once in a process.
    if operator not in _operators:
        _operators[operator] = operator()
    return _operators[operator].spec()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_caught(mutant):
    with pytest.raises(testing.CheckError) as caught:
        testing.check(spec_of(mutant), checks=[mutant.caught_by])
    assert mutant.says in str(caught.value)
    assert f"{mutant.name}: " in str(caught.value)
    assert "look at: " in str(caught.value)


def test_a_namespace_has_no_kernel_without_an_operator():
    spec = spec_of(broken.MisspeltKernel)
    with pytest.raises(testing.CheckError, match=f"for {spec.namespace}::fused_op_bakward, and"):
        testing.check_namespace(spec.namespace)


def test_the_library_fills_new_tensors_on_request():
    """Else the battery does not see what kernels leave unwritten. (The aten build needs none.)"""
    with poisoned():
        filled = _loader.fill_new_tensors(True)
    assert filled is (_loader.build_info()["abi"] == "stable")
    assert not _loader.fill_new_tensors(False)


# Each costs seconds; the operators of the package go through them.
COSTLY = {
    *("check_opcheck", "check_compile", "check_compiled_transforms", "check_memory"),
    *("check_layouts", "check_inductor", "check_dynamic"),
}


@pytest.mark.parametrize("operator", SOUND, ids=lambda operator: operator.__name__)
def test_sound_operator_passes(operator):
    checks = sorted(testing.CHECKS.keys() - COSTLY)
    # In an order of its own, with what compiles transforms after all others.
    random.Random(operator.__name__).shuffle(checks)
    run_one_by_one(operator, [*checks, "check_compiled_transforms"])


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
@pytest.mark.parametrize("operator", SOUND, ids=lambda operator: operator.__name__)
def test_sound_operator_passes_everything(operator, order):
    checks = list(testing.CHECKS)[:: -1 if order == "backwards" else 1]
    if order == "shuffled":
        random.Random(operator.__name__).shuffle(checks)
    run_one_by_one(operator, checks, thorough=True)


def run_one_by_one(operator, checks, **options):
    """Each finds the process as it was, and leaves it so: no check depends on those before it."""
    spec = spec_of(operator)
    for check in checks:
        with unchanged_process():
            testing.check(spec, checks=[check], **options)


@pytest.mark.parametrize(
    ("leave", "name"),
    [
        (lambda: torch.set_grad_enabled(False), "grad mode"),
        (lambda: torch.set_default_dtype(torch.float64), "default dtype"),
        (lambda: torch.rand(1), "torch's generator"),
        (lambda: torch.compile(torch.sin, backend="eager")(torch.ones(1)), "torch.compile's code"),
        (
            lambda: setattr(torch._dynamo.config, "capture_scalar_outputs", True),
            "torch._dynamo.config.capture_scalar_outputs",
        ),
    ],
)
def test_what_is_left_behind_shows(leave, name):
    before = process_state()
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    generator = torch.get_rng_state()
    try:
        with torch._dynamo.config.patch(capture_scalar_outputs=False):
            leave()
            found = changes(before, process_state())
    finally:
        torch.set_grad_enabled(grad_mode)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(generator)
        torch.compiler.reset()
    assert [line.split(":")[0] for line in found] == [name]
    assert not changes(before, process_state())


def test_every_check_has_a_mutant():
    classes = [value for value in vars(broken).values() if inspect.isclass(value)]
    caught_by = {getattr(mutant, "caught_by", None) for mutant in classes}
    # A second device is rare, and what Dynamo makes of a transform is its own.
    assert testing.CHECKS.keys() - caught_by == {"check_second_device", "check_compiled_transforms"}


def test_a_check_without_samples_fails():
    spec = dataclasses.replace(spec_of(sound.FusedOp), samples=lambda make, shape: [])
    silent, messages = set(), []
    for name in testing.CHECKS.keys() - {"check_properties"}:
        try:
            testing.check(spec, devices=["cpu"], checks=[name])
            silent.add(name)
        except testing.CheckError as error:
            messages.append(str(error))
    assert all("samples() yields nothing for (" in message for message in messages)
    assert all("shapes= of OpSpec" in message for message in messages)
    for_others = {
        *("check_argument_twice", "check_missing_backend", "check_mutation", "check_no_gradient"),
    }
    on_cuda = {"check_cuda_graph", "check_streams", "check_second_device"}
    # Of which the spec has some of its own.
    assert silent == for_others | on_cuda | {"check_bad_inputs"}


@pytest.mark.parametrize("policy", ["float32", "promote"])
def test_autocast_keeps_the_dtypes_that_a_line_says(policy):
    mutant = type(f"Scale{policy.title()}", (sound.Scale,), {"autocast": policy})
    testing.check(spec_of(mutant), checks=["check_autocast"])


@pytest.mark.parametrize("shapes", [((300,),), ((100, 200),)])
def test_shapes_of_which_none_is_small(shapes):
    """Nor takes vectorised paths: layouts are those of what there is."""
    spec = dataclasses.replace(spec_of(sound.FusedOp), shapes=shapes)
    testing.check(spec, devices=["cpu"], checks=["check_layouts"])


def spec_of_line(line):
    op = Operator("nowhere", "f(Tensor x) -> Tensor", f"{line} -> {line}")
    return testing.OpSpec(
        name="f",
        namespace="nowhere",
        function=torch.relu,
        reference=torch.relu,
        lines={"nowhere::f": op},
    )


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("*rows n", {1, 2, 3, 4}), ("n", {1}), ("m n", {2}), ("a b c d e", {5}), ("()", {0})],
)
def test_shapes_have_the_rank_that_the_line_says(line, ranks):
    spec = spec_of_line(line)
    assert {len(shape) for shape in spec.shapes} == ranks
    sizes = [torch.Size(shape).numel() for shape in spec.shapes]
    if ranks != {0}:
        assert 0 in sizes
        assert max(sizes) >= 100_000
    assert dataclasses.replace(spec, shapes=((3,),)).shapes == ((3,),)


@pytest.mark.parametrize(
    ("line", "sizes"),
    [("n 4", {1: 4}), ("4", {0: 4}), ("*rows 4", {-1: 4}), ("3 *rows n 2", {0: 3, -1: 2})],
)
def test_shapes_have_the_sizes_that_the_line_says(line, sizes):
    spec = spec_of_line(line)
    taken = [s for s in spec.shapes if len(s) >= spec.line.notation.inputs[0].single]
    assert taken
    for shape in taken:
        assert {d: shape[d] for d in sizes} == sizes
        assert list(spec.line.samples(testing.Make("cpu", torch.float32), shape))


def test_lists_are_gone_through_one_by_one():
    """Where `ys[1]` is `xs[0]`, what is read has been written to by then."""
    testing.check(spec_of(sound.AddEach), checks=["check_argument_twice"])


def test_one_tensor_for_two_arguments_has_values_that_both_take():
    """Numbers that are an index as well lie within it."""
    testing.check(spec_of(sound.Renumber), checks=["check_argument_twice"])


def test_shapes_of_which_none_has_few_dimensions():
    """Checks that would take fewer take the fewest there are."""
    shapes = ((0, 2, 3), (2, 3, 1), (2, 3, 4), (2, 2, 3, 4), (2, 3, 2, 2, 3))
    spec = dataclasses.replace(spec_of(sound.FusedOp), shapes=shapes)
    assert [main_shape(spec, dim) for dim in (2, 3, 4, 5)] == [shapes[2], *shapes[2:]]
    testing.check(spec, devices=["cpu"], checks=["check_vmap"])


def test_sizes_that_happen_to_be_equal_are_two():
    """Of a sample, under check_dynamic: four rows, and in the first shape as many columns."""
    spec = dataclasses.replace(
        spec_of(sound.FusedOp),
        samples=lambda make, shape: [testing.Sample(make((4, shape[-1])), make(shape[-1:]))],
    )
    testing.check(spec, devices=["cpu"], checks=["check_dynamic"])


@pytest.mark.parametrize("sizes", [(), (24,), (3, 7, 17)])
def test_sizes_that_an_operator_does_not_take_are_not_asked_for(sizes):
    """Under check_dynamic, of whose shapes with 3, 7, 17 and 24 rows only some have samples."""
    shapes = ((0, 4), (2, 4), (5, 6))

    def samples(make, shape):
        if shape[0] in sizes or shape in shapes:
            yield testing.Sample(make(shape), make(shape[-1:]))
            if shape[0] == 17:
                yield testing.Sample(make(shape), make(shape[-1:]), scale=1.75)

    sound_spec, broken_spec = (
        dataclasses.replace(spec_of(operator), samples=samples, shapes=shapes)
        for operator in (sound.FusedOp, broken.FakeSpecialises)
    )
    testing.check(sound_spec, devices=["cpu"], checks=["check_dynamic"])
    with pytest.raises(testing.CheckError, match="compiled with dynamic=True"):
        testing.check(broken_spec, devices=["cpu"], checks=["check_dynamic"])


def test_integers_of_a_batch_are_those_of_samples():
    """What an index has to be, as ascending, that of every example is."""
    testing.check(spec_of(Ascending), checks=["check_transforms", "check_vmap"])


class Ascending(sound.Pick):
    def samples(self, make, shape):
        for sample in super().samples(make, shape):
            input, index = sample.args
            yield testing.Sample(input, index.sort()[0])

    def check_index(self, name, input, index):
        super().check_index(name, input, index)
        ascends = bool((index.diff() >= 0).all())
        torch._check(ascends, lambda: f"{name}: index must ascend, got {index.tolist()}")


@pytest.mark.parametrize(
    ("raises", "differentiable", "checks", "place"),
    [
        ("fused_op_kernel", False, ["side_effects", "determinism", "traffic"], "the kernel in "),
        ("fused_op_kernel", True, ["side_effects", "determinism", "traffic"], "the kernel in "),
        (
            *("fused_op_backward_kernel", True, ["side_effects", "determinism"]),
            "the derivative formula in ",
        ),
    ],
)
def test_what_raises_is_what_to_look_at(raises, differentiable, checks, place, monkeypatch):
    spec = dataclasses.replace(spec_of(Raising), differentiable=differentiable)
    monkeypatch.setattr(Raising, "raising", raises)
    for check in checks:
        with pytest.raises(testing.CheckError, match=f"raised(.|\n)*\n  look at: {place}"):
            testing.check(spec, devices=["cpu"], checks=[f"check_{check}"])


class Raising(sound.FusedOp):
    raising = ""

    def fused_op_kernel(self, *args):
        assert self.raising != "fused_op_kernel"
        return super().fused_op_kernel(*args)

    def fused_op_backward_kernel(self, *args):
        assert self.raising != "fused_op_backward_kernel"
        return super().fused_op_backward_kernel(*args)


def test_strides_that_the_public_function_minds_show_in_every_sample():
    """Of a tensor that the first sample does not give."""
    (spec,) = (spec for spec in testing.find_specs() if spec.name == "linear_scan")

    def scan(decay, input, initial=None, dim=-1):
        if initial is not None:
            initial = initial.view(-1).view(initial.shape)
        return ops.linear_scan(decay, input, initial, dim)

    minding = dataclasses.replace(spec, function=scan)
    with pytest.raises(AssertionError, match="transposed"):
        testing.check(minding, devices=["cpu"], checks=["check_layouts"])


def test_a_reference_that_stops_gradients_has_no_slope():
    """Finite differences are left out where they do not agree with the reference either."""
    (spec,) = (spec for spec in testing.find_specs() if spec.name == "square")
    constant = dataclasses.replace(
        spec, function=lambda input: input * input.detach(), stops_gradients=True
    )
    straight = dataclasses.replace(constant, reference=lambda input: input * input.detach())
    testing.check(straight, checks=["check_gradcheck"])
    with pytest.raises(testing.CheckError, match="gradcheck"):
        testing.check(constant, checks=["check_gradcheck"])


class Quantise(sound.Operator):
    """Each element as an integer, in float8 and in complex64, of a row's scale, on CPU only."""

    name = "quantise"
    schemas = ("quantise(Tensor input) -> (Tensor, Tensor, Tensor, Tensor)",)
    line = "*rows n -> *rows n:int8, *rows n:float8_e4m3fn, *rows n:complex64, *rows:float32"
    differentiable = False
    devices = ("cpu",)
    factors = (1.0, 1.0, 1.0)

    def __init__(self):
        namespace = f"mutant_{type(self).__name__.lower()}"
        self.shapes_of = Operator(namespace, self.schemas[0], self.line)
        self.quantise_fake = self.shapes_of.fake_kernel()
        super().__init__()

    def spec(self):
        lines = {self.qualified(self.name): self.shapes_of}
        return dataclasses.replace(super().spec(), lines=lines, tolerances={torch.int8: (0, 1)})

    def function(self, input):
        return self.op("quantise")(input)

    def samples(self, make, shape):
        if shape and shape[-1]:
            yield testing.Sample(make(shape))

    def results(self, input, factors):
        scale = input.abs().amax(-1) / 100
        values = [(input * factor / scale.unsqueeze(-1)).nan_to_num(0.0) for factor in factors]
        return values[0].round().to(torch.int8), values[1], values[2] * (1 + 2j), scale

    def reference(self, input):
        if input.dtype == torch.float64:
            return self.results(input, (1.0,) * 3)
        integer, small, pair, scale = self.results(input.float(), (1.0,) * 3)
        return integer, small.to(torch.float8_e4m3fn), pair.to(torch.complex64), scale

    def quantise_kernel(self, input):
        self.shapes_of.check(input)
        found = self.results(input.float().contiguous(), self.factors)
        dtypes = (torch.int8, torch.float8_e4m3fn, torch.complex64, torch.float32)
        return tuple(value.to(dtype) for value, dtype in zip(found, dtypes, strict=True))

    def register(self):
        registration.register_no_autograd(self.qualified(self.name))
        registration.register_vmap(self.qualified(self.name), self.shapes_of.batching_rule())


def test_results_that_are_quantised():
    """Integers are off by one where rounding decides, float8 by half a step, and no more."""
    spec = spec_of(Quantise)
    checks = ["forward", "layouts", "vmap", "no_gradient", "determinism", "strides", "export"]
    testing.check(spec, checks=[f"check_{name}" for name in checks])
    # Of calls without elements too, whose gradients nothing refuses.
    testing.check(spec, checks=["check_opcheck"], thorough=True)
    exact = dataclasses.replace(spec, shapes=((128, 1024),), tolerances={})
    with pytest.raises(testing.CheckError, match=r"output 0: \d+ of 131072 elements differ"):
        testing.check(exact, checks=["check_forward"])


def test_a_reference_may_give_what_has_one_dtype_in_that():
    spec = spec_of(Quantise)

    def in_its_dtype(input, dtype=torch.float32):
        *rest, scale = spec.reference(input)
        return *rest, scale.to(dtype)

    testing.check(dataclasses.replace(spec, reference=in_its_dtype), checks=["check_forward"])
    wrong = dataclasses.replace(spec, reference=lambda x: in_its_dtype(x * 1.0001))
    with pytest.raises(testing.CheckError, match=r"output 3: \d+ of"):
        testing.check(wrong, checks=["check_forward"])
    half = dataclasses.replace(spec, reference=lambda x: in_its_dtype(x, torch.float16))
    with pytest.raises(testing.CheckError, match=r"gives torch.float16 for torch.float64"):
        testing.check(half, checks=["check_forward"])


class CodesFirst(sound.Operator):
    """Integers, and then what has a gradient, infinite where the input is negative."""

    name = "codes_first"
    schemas = ("codes_first(Tensor input) -> (Tensor, Tensor)",)
    line = "*rows n -> *rows n:int8, *rows n"
    devices = ("cpu",)
    slope = 2

    def __init__(self):
        namespace = f"mutant_{type(self).__name__.lower()}"
        self.shapes_of = Operator(namespace, self.schemas[0], self.line)
        self.codes_first_fake = self.shapes_of.fake_kernel()
        super().__init__()

    def spec(self):
        lines = {self.qualified(self.name): self.shapes_of}
        return dataclasses.replace(super().spec(), lines=lines)

    def function(self, input):
        return self.op("codes_first")(input)

    def samples(self, make, shape):
        yield testing.Sample(make(shape))

    def reference(self, input):
        return (input > 0).to(torch.int8), torch.where(input > 0, input * 2, -torch.inf)

    def codes_first_kernel(self, input):
        return tuple(result.contiguous() for result in self.reference(input))

    def setup_context(self, ctx, inputs, output):
        ctx.mark_non_differentiable(output[0])
        ctx.save_for_backward(*inputs)

    def backward(self, ctx, codes, values):
        (input,) = ctx.saved_tensors
        return torch.where(input > 0, values * self.slope, 0)

    def register(self):
        registration.register_autograd(
            self.qualified(self.name), self.backward, setup_context=self.setup_context
        )


def test_integers_before_what_has_a_gradient():
    """PyTorch's opcheck adds results up in the dtype of the first, and did not get beyond it."""
    testing.check(spec_of(CodesFirst), checks=["check_opcheck", "check_backward"])


def test_results_that_are_infinite_have_no_differences():
    testing.check(spec_of(CodesFirst), checks=["check_gradcheck"])

    class Steeper(CodesFirst):
        slope = 3

    with pytest.raises(testing.CheckError, match="gradcheck"):
        testing.check(spec_of(Steeper), checks=["check_gradcheck"])


@pytest.mark.parametrize(("output", "factor"), [(0, 0.95), (1, 0.8), (2, 1.0001)])
def test_results_that_are_quantised_wrongly(output, factor, monkeypatch):
    factors = [1.0, 1.0, 1.0]
    factors[output] = factor
    monkeypatch.setattr(Quantise, "factors", factors)
    with pytest.raises(testing.CheckError, match=f"output {output}: "):
        testing.check(spec_of(Quantise), checks=["check_forward"])


def test_integers_have_no_gradient_to_lose():
    op = spec_of(Quantise)
    integers = dataclasses.replace(op, function=lambda input: op.function(input)[0])
    testing.check(integers, checks=["check_no_gradient"])


def test_terms_that_cancel_are_as_large_as_the_inputs():
    """The gradient of what a mean is taken from is 0 of equal numbers, but for rounding."""
    nothing = torch.zeros(2, 3)
    expected = nothing.double()
    units, tens, labels = torch.ones(2, 3), torch.full((2, 3), 10.0), torch.full((2,), 10)
    _, atol = tolerance(nothing, expected, [units, labels], order=1)
    assert tolerance(nothing, expected, [units, tens], order=1)[1] == pytest.approx(10 * atol, 0.1)
    same = [tolerance(nothing, expected, [other], order=0) for other in (units, tens)]
    assert same[0] == same[1]


def test_unknown_check():
    with pytest.raises(ValueError, match="no check is called"):
        testing.check(spec_of(sound.Round), checks=["check_froward"])


def test_without_a_line_samples_are_asked_for():
    with pytest.raises(ValueError, match="samples are missing"):
        dataclasses.replace(spec_of(sound.FusedOp), samples=None)


def test_without_an_import_the_public_function_is_asked_for():
    with pytest.raises(ValueError, match=r"extension_cpp\.ops has no 'nothing'\. Import the pub"):
        testing.OpSpec(name="nothing", reference=torch.relu)
    spec = testing.OpSpec(name="relu", reference=torch.relu)
    assert spec.function is ops.relu


def test_the_definition_is_asked_for():
    with pytest.raises(ValueError, match="give its definition, as reference= or op_reference="):
        testing.OpSpec(name="relu")
    spec = testing.OpSpec(name="relu", op_reference=lambda input: (input + 1, input))
    assert spec.reference(2) == 3
    assert list(inspect.signature(spec.reference).parameters) == ["input"]


def test_what_follows_is_that_of_the_spec():
    """Also where one is made from another."""
    (spec,) = (spec for spec in testing.find_specs() if spec.name == "mymul")
    make, size = testing.Make(), 4 * 3 * 4
    sample, *_ = spec.samples(make, (3, 4))
    # a, b and the output; its gradient, a, b and two gradients.
    assert spec.traffic(sample) == testing.Traffic(forward=3 * size, backward=5 * size)
    other = dataclasses.replace(
        spec, function=lambda a, b: a + b, differentiable=False, bad_inputs=lambda make: ()
    )
    assert other.traffic(sample) == testing.Traffic(forward=3 * size, backward=0)
    names = [bad.name for bad in spec.bad_inputs(make)]
    assert names == [bad.name for bad in other.bad_inputs(make)]
    assert {"a as torch.int64", "b absent", "b of shape (3, 5)"} < set(names)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        # The gradient of a tensor that is not broadcast is the incoming one.
        ("vector_add", 3 * 48, 0),
        ("reduce_sum", 48 + 4, 0),
        # What is saved: the output.
        ("fused_op", 2 * 48 + 16, 3 * 48 + 16),
        # That of b is the incoming one.
        ("affine", 4 * 48, 5 * 48),
        ("myadd_out", 3 * 48, 0),
        # What is saved: decays and output.
        ("linear_scan", 3 * 48, 5 * 48),
    ],
)
def test_traffic_is_measured(name, forward, backward):
    (spec,) = (spec for spec in testing.find_specs() if spec.name == name)
    sample = next(iter(spec.samples(testing.Make(requires_grad=spec.differentiable), (3, 4))))
    assert spec.traffic(sample) == testing.Traffic(forward, backward)


def test_traffic_counts_an_expanded_tensor_as_it_lies_in_memory():
    (spec,) = (spec for spec in testing.find_specs() if spec.name == "mymul")
    a, row = torch.rand(3, 4), torch.rand(4)
    # a, the row and the output; its gradient, a, the row and two gradients.
    expected = testing.Traffic(forward=2 * 48 + 16, backward=4 * 48 + 16)
    assert spec.traffic(testing.Sample(a, row.expand(3, 4))) == expected


ACCEPTED = '''
import torch
from extension_cpp.testing import BadInput, Sample

def bad_inputs(make):
    yield BadInput(
        "first",
        Sample(make((3, 4), dtype=torch.int64), make((4,))),
        """""",
    )
    yield BadInput(
        "second",
        Sample(make((3, 4)), make((3,))),
        "an old text,"
        " on two lines",
    )
    bad = Sample(make((3, 4)), make((5,)))
    yield BadInput("third", bad, "old: é")
'''


def test_messages_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    path = tmp_path / "bad.py"
    path.write_text(ACCEPTED, encoding="utf-8")

    def bad_inputs(make):
        namespace = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        yield from namespace["bad_inputs"](make)

    spec = dataclasses.replace(spec_of(sound.FusedOp), bad_inputs=bad_inputs)
    testing.check(spec, checks=["check_bad_inputs"])
    expecttest.assert_expected_inline(
        path.read_text(encoding="utf-8"),
        '''
import torch
from extension_cpp.testing import BadInput, Sample

def bad_inputs(make):
    yield BadInput(
        "first",
        Sample(make((3, 4), dtype=torch.int64), make((4,))),
        """fused_op: input must be floating, got torch.int64""",
    )
    yield BadInput(
        "second",
        Sample(make((3, 4)), make((3,))),
        """fused_op: bias must have shape (4,), got (3,)""",
    )
    bad = Sample(make((3, 4)), make((5,)))
    yield BadInput("third", bad, """fused_op: bias must have shape (4,), got (5,)""")
''',
    )
    # What was accepted passes.
    monkeypatch.delenv("EXPECTTEST_ACCEPT")
    testing.check(spec, checks=["check_bad_inputs"])
